r"""A strict reader of one scalar expression in LaTeX or plain notation.

It understands the notation of closed-form answers and raises ``Unreadable`` on everything else: unlike the tolerant
grammars of general LaTeX parsers it never skips a token, which is what lets a verdict rest on it. Ambiguous spellings
(``1/2x``, ``2^10`` among LaTeX commands, ``2\frac{3}{2}``) are unreadable too.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from genselect.answers.tokens import FUNCTIONS, Token, Unreadable

__all__ = ["Node", "number_value", "read_expression", "symbols_of"]

MAX_TOKENS = 400
_GREEK = frozenset(
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu \nu \xi \rho "
    r"\sigma \tau \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Sigma \Phi \Psi \Omega \ell \hbar".split()
)
_OPAQUE = frozenset(r"\overline \bar \hat \vec \tilde \overrightarrow \widehat \angle \triangle".split())
_UNKNOWN_FUNCTIONS = frozenset("fghFGHPQ")
_TIMES = frozenset({"*", r"\cdot", r"\times"})
_OVER = frozenset({"/", r"\div", ":"})
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}


@dataclass(frozen=True)
class Node:
    """An expression: ``op`` with its arguments; ``value`` is a number, a name, or the number's spelling in ``text``."""

    op: str
    args: tuple[Node, ...] = ()
    value: Fraction | None = None
    text: str = ""


def read_expression(tokens: list[Token], *, plain: bool = False) -> Node:
    """The expression that exactly these tokens spell.

    Args:
        tokens: All of them must be used.
        plain: The answer holds no LaTeX command, so that ``2^10`` and ``x^-1`` read as a person means them.

    Raises:
        Unreadable: Not an expression of the supported notation, or ambiguous.
    """
    if not tokens:
        raise Unreadable("an empty expression")
    if len(tokens) > MAX_TOKENS:
        raise Unreadable("a very long expression")
    reader = _Reader(tokens, plain)
    try:
        node = reader.sum()
    except RecursionError as error:
        raise Unreadable("a very deep expression") from error
    if reader.peek() is not None:
        raise Unreadable(f"{reader.peek_text()!r} is not part of an expression")
    return node


def symbols_of(node: Node) -> frozenset[str]:
    """Names of the free symbols and unknown functions."""
    found = {node.text} if node.op in {"symbol", "unknown"} else set()
    return frozenset(found).union(*(symbols_of(arg) for arg in node.args))


def number_value(text: str) -> Fraction:
    r"""Exact value of a decimal, repeating decimals such as ``0.\overline{3}`` included."""
    head, bar, repeated = text.partition("\\overline{")
    if not bar:
        return Fraction(text if not text.startswith(".") else "0" + text)
    repeated = repeated.rstrip("}")
    if "." not in head:
        raise Unreadable("an overline that is no repeating decimal")
    decimals = len(head.split(".")[1])
    base = Fraction(head if head[-1] != "." else head + "0") if head != "." else Fraction(0)
    return base + Fraction(int(repeated), (10 ** len(repeated) - 1) * 10**decimals)


class _Reader:
    """Recursive descent over the tokens; every method leaves the position after what it read."""

    def __init__(self, tokens: list[Token], plain: bool) -> None:
        self.tokens, self.plain = tokens, plain
        self.position = 0
        self.in_bars = 0

    def peek(self, ahead: int = 0) -> Token | None:
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    def peek_text(self, ahead: int = 0) -> str:
        token = self.peek(ahead)
        return token.text if token else ""

    def take(self) -> Token:
        token = self.peek()
        if token is None:
            raise Unreadable("an expression that stops half-way")
        self.position += 1
        return token

    def expect(self, text: str) -> None:
        if self.take().text != text:
            raise Unreadable(f"{text!r} is missing")

    def sum(self) -> Node:
        terms = [self.signed_term()]
        while self.peek_text() in {"+", "-"}:
            sign = self.take().text
            term = self.signed_term()
            terms.append(term if sign == "+" else Node("neg", (term,)))
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def signed_term(self) -> Node:
        if self.peek_text() in {"+", "-"}:
            sign = self.take().text
            inner = self.signed_term()
            return inner if sign == "+" else Node("neg", (inner,))
        return self.term()

    def term(self) -> Node:
        node = self.factors()[0]
        while self.peek_text() in _TIMES or self.peek_text() in _OVER - {":"}:
            operator = self.take().text
            negative = self.peek_text() == "-"
            if negative:
                self.take()
            right, count = self.factors()
            if operator in _OVER and count > 1:
                raise Unreadable("'a/bc' can mean two things")
            node = Node("mul" if operator in _TIMES else "div", (node, right))
            node = Node("neg", (node,)) if negative else node
        return node

    def factors(self) -> tuple[Node, int]:
        """A run of implicitly multiplied factors, and how many."""
        first_token = self.peek()
        parts = [self.power()]
        mixed = self.mixed_part(first_token, parts[0])
        if mixed is not None:
            parts = [mixed]
        while self.starts_factor():
            token = self.peek()
            if token is not None and token.kind == "number":
                raise Unreadable("two numbers side by side")
            parts.append(self.power())
        return (parts[0] if len(parts) == 1 else Node("mul", tuple(parts))), len(parts)

    def mixed_part(self, first: Token | None, whole: Node) -> Node | None:
        """``2 1/4`` and ``2\\frac14``: the mixed number, when the first factor is an integer with a fraction next to it."""
        if first is None or whole.op != "number" or not first.text.isdigit():
            return None
        part: Fraction | None = None
        token, slash, below = self.peek(), self.peek_text(1), self.peek(2)
        if token is not None and token.text == r"\frac":
            start = self.position
            node = self.power()
            above, under = node.args if node.op == "div" else (node, node)
            if node.op != "div" or above.value is None or under.value is None or "." in above.text + under.text:
                self.position = start
                return None
            part = above.value / under.value if under.value else None
        elif token is not None and token.text.isdigit() and slash == "/" and below is not None and below.text.isdigit():
            self.position += 3
            part = Fraction(int(token.text), int(below.text)) if int(below.text) else None
            if not token.spaced:
                part = None
        else:
            return None
        if part is None or not 0 < part < 1 or self.peek_text() in {"^", "!"}:
            raise Unreadable("a number beside a fraction that is no mixed number")
        assert whole.value is not None
        return Node("number", value=whole.value + part)

    def starts_factor(self) -> bool:
        token = self.peek()
        if token is None:
            return False
        if token.kind in {"number", "letter"}:
            return True
        if token.kind == "word":
            return True  # power() decides, and refuses real words
        if token.kind == "command":
            return (
                token.text in _STARTERS or token.text in _GREEK or token.text in _OPAQUE or token.text[1:] in FUNCTIONS
            )
        return token.text in {"(", "[", "{"} or (token.text == "|" and not self.in_bars)

    def power(self) -> Node:
        node = self.postfix()
        if self.peek_text() == "^":
            self.take()
            node = Node("pow", (node, self.exponent()))
            if self.peek_text() in {"^", "!"}:
                raise Unreadable("an exponent on an exponent can mean two things")
        return node

    def exponent(self) -> Node:
        token = self.peek()
        if token is None:
            raise Unreadable("an expression that stops half-way")
        if token.text == "-" and self.plain:
            self.take()
            return Node("neg", (self.exponent(),))
        if token.kind == "number" and len(token.text) > 1:
            following = self.peek(1)
            if not self.plain or (following is not None and following.kind in {"letter", "word"}):
                raise Unreadable("an exponent of several digits without braces")
        if token.kind == "word":
            raise Unreadable("a word as an exponent")
        return self.atom()

    def postfix(self) -> Node:
        node = self.atom()
        while self.peek_text() in {"!", "°"}:
            mark = self.take().text
            if mark == "°":
                node = Node(
                    "mul", (node, Node("div", (Node("constant", text="pi"), Node("number", value=Fraction(180)))))
                )
            elif self.peek_text() == "!":
                self.take()
                node = Node("call", (node,), text="doublefactorial")
            else:
                node = Node("call", (node,), text="factorial")
        return node

    def atom(self) -> Node:
        token = self.take()
        if token.kind == "number":
            return Node("number", value=number_value(token.text), text=token.text)
        if token.kind == "letter":
            return self.name(token.text)
        if token.kind == "word":
            return self.run_of_letters(token.text)
        if token.text in {"(", "[", "{"}:
            return self.group({"(": ")", "[": "]", "{": "}"}[token.text])
        if token.text == "|" and not self.in_bars:
            self.in_bars += 1
            inner = self.sum()
            self.expect("|")
            self.in_bars -= 1
            return Node("call", (inner,), text="abs")
        if token.kind == "command":
            return self.command(token.text)
        raise Unreadable(f"{token.text!r} is not part of an expression")

    def group(self, closing: str) -> Node:
        bars, self.in_bars = self.in_bars, 0
        inner = self.sum()
        self.expect(closing)
        self.in_bars = bars
        return inner

    def braced(self) -> Node:
        """A command's argument: a group in braces, or one token."""
        if self.peek_text() == "{":
            self.take()
            return self.group("}")
        token = self.peek()
        if token is None or (token.kind == "number" and len(token.text) > 1) or token.kind in {"word", "symbol"}:
            raise Unreadable("a command without its argument")
        return self.atom()

    def name(self, letter: str) -> Node:
        subscript = self.subscript()
        if not subscript and letter in {"e", "i"} and self.peek_text() != "'":
            return Node("constant", text=letter)
        primes = ""
        while self.peek_text() == "'":
            primes += self.take().text
        name = letter + subscript + primes
        if letter in _UNKNOWN_FUNCTIONS and self.peek_text() == "(":
            self.take()
            return Node("unknown", (self.group(")"),), text=name + "()")
        return Node("symbol", text=name)

    def subscript(self) -> str:
        if self.peek_text() != "_":
            return ""
        self.take()
        if self.peek_text() != "{":
            return "_" + self.take().text
        self.take()
        inside = ""
        while self.peek_text() not in {"}", ""}:
            inside += self.take().text
        self.expect("}")
        if not inside or "{" in inside:
            raise Unreadable("a subscript that is no name")
        return "_" + inside

    def run_of_letters(self, word: str) -> Node:
        # `xy` is a product, `Evelyn` is not; three letters is where variables end and words begin.
        around = [self.tokens[k] for k in (self.position - 2, self.position) if 0 <= k < len(self.tokens)]
        if word.lower() in _SHORT_WORDS or any(token.kind in {"word", "text"} for token in around):
            raise Unreadable(f"the word {word!r}")
        if len(word) > 3 or (len(word) == len(self.tokens[0].text) and len(self.tokens) == 1):
            raise Unreadable(f"the word {word!r}")
        letters = [Node("constant", text=c) if c in {"e", "i"} else Node("symbol", text=c) for c in word[:-1]]
        return Node("mul", (*letters, self.name(word[-1])))

    def command(self, name: str) -> Node:
        if name == r"\frac":
            return Node("div", (self.braced(), self.braced()))
        if name == r"\binom":
            return Node("call", (self.braced(), self.braced()), text="binomial")
        if name == r"\sqrt":
            return self.root()
        if name in {r"\pi", r"\infty"}:
            return Node("constant", text=name[1:])
        if name in {r"\lfloor", r"\lceil"}:
            text = "floor" if name == r"\lfloor" else "ceil"
            return Node("call", (self.group(r"\rfloor" if text == "floor" else r"\rceil"),), text=text)
        if name in _GREEK:
            return Node("symbol", text=name + self.subscript())
        if name in _OPAQUE:
            return Node("symbol", text=name + self.opaque_argument())
        if name[1:] in FUNCTIONS:
            return self.function(name[1:])
        raise Unreadable(f"the command {name}")

    def opaque_argument(self) -> str:
        if self.peek_text() != "{":
            return self.take().text
        self.take()
        inside = ""
        while self.peek_text() not in {"}", "{", ""}:
            inside += self.take().text
        self.expect("}")
        return inside

    def root(self) -> Node:
        index = Node("number", value=Fraction(2))
        if self.peek_text() == "[":
            self.take()
            index = self.group("]")
        if self.peek_text() == "(":  # invalid LaTeX that people write and mean
            self.take()
            return Node("root", (self.group(")"), index))
        return Node("root", (self.braced(), index))

    def function(self, name: str) -> Node:
        name = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}.get(name, name)
        exponent: Node | None = None
        base: tuple[Node, ...] = ()
        if name in {"log", "lg"} and self.peek_text() == "_":
            self.take()
            base = (self.braced(),) if self.peek_text() == "{" else (self.atom(),)
        if self.peek_text() == "^":
            self.take()
            exponent = self.exponent()
        if exponent is not None and exponent.op == "neg" and exponent.args[0].text == "1" and name in _INVERSE:
            name, exponent = _INVERSE[name], None
        if name in {"max", "min", "gcd", "lcm"}:
            node = Node("call", self.argument_list(), text=name)
        else:
            node = Node("call", (self.function_argument(), *base), text=name)
        return node if exponent is None else Node("pow", (node, exponent))

    def argument_list(self) -> tuple[Node, ...]:
        self.expect("(")
        arguments = [self.sum()]
        while self.peek_text() == ",":
            self.take()
            arguments.append(self.sum())
        self.expect(")")
        return tuple(arguments)

    def function_argument(self) -> Node:
        """``\\sin(x)`` takes the bracket only; ``\\sin 2x`` takes the factors up to the next function or operator."""
        if self.peek_text() in {"(", "|"} or self.peek_text() == "{":
            node = self.atom()
            if self.peek_text() == "^":
                raise Unreadable("a power after a function's bracket can mean two things")
            return node
        parts = [self.power()]
        while self.starts_factor() and self.peek_text()[1:] not in FUNCTIONS and self.peek_text() not in {"(", "["}:
            token = self.peek()
            if token is not None and token.kind == "number":
                raise Unreadable("two numbers side by side")
            parts.append(self.power())
        return parts[0] if len(parts) == 1 else Node("mul", tuple(parts))


_SHORT_WORDS = frozenset(
    "the of not is in at if no on all any for mod odd set one two six ten or and to as by so up it its are was has an am pm "
    "off out per via yes nor but".split()
)
_STARTERS = frozenset({r"\frac", r"\binom", r"\sqrt", r"\pi", r"\infty", r"\lfloor", r"\lceil"})
