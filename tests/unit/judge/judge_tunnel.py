"""Ways to a judge elsewhere that can be cut and set up again: a port of the loopback that leads to another one."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path


class Forwarder:
    """A TCP forwarder in threads, in the place of ``ssh -L``."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._sockets: list[socket.socket] = []
        self.set_up()

    def set_up(self) -> None:
        """Listen."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self._sockets = [listener]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection, and take no more."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class SshTunnel:
    """``ssh -N -L`` through an sshd of its own on the loopback."""

    def __init__(self, target: int, folder: Path) -> None:
        self.port, self._target, self._folder = free_port(), target, folder
        folder.mkdir()
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        self._sshd_port = free_port()
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self._sshd_port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
            "PasswordAuthentication no\nPermitRootLogin prohibit-password\nUsePAM no\nStrictModes no\nPidFile none\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd drops its privileges; a service would make it
        command = [str(shutil.which("sshd")), "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "sshd.log").open("wb") as log:
            self._sshd = subprocess.Popen(command, stderr=log)
        wait_for_port(self._sshd_port)
        self.set_up()

    def set_up(self) -> None:
        """What docs/judge.md says."""
        command = [
            "ssh",
            "-N",
            "-L",
            f"127.0.0.1:{self.port}:127.0.0.1:{self._target}",
            "-o",
            "ExitOnForwardFailure=yes",
        ]
        command += ["-F", "none", "-i", str(self._folder / "user"), "-p", str(self._sshd_port)]
        command += [
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            f"{getpass.getuser()}@127.0.0.1",
        ]
        with (self._folder / "ssh.log").open("ab") as log:
            self._ssh = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        wait_for_port(self.port)

    def cut(self) -> None:
        """As when the connection is lost."""
        self._ssh.kill()
        self._ssh.wait()

    def close(self) -> None:
        """End sshd, too."""
        self.cut()
        self._sshd.terminate()
        self._sshd.wait()


def why_no_ssh() -> str | None:
    """Why there can be no :class:`SshTunnel` here; None when there can."""
    missing = [name for name in ("ssh", "sshd", "ssh-keygen") if shutil.which(name) is None]
    return f"no {', '.join(missing)} here: apt-get install openssh-client openssh-server" if missing else None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, timeout_s: float = 20) -> None:
    """Until somebody listens."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens on port {port}"
            time.sleep(0.05)
        else:
            return
