"""What verl needs of us to train: records, potential, calibration, guards, proofs, and the trainer around them."""
