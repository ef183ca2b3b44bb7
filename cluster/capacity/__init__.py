"""What `plan`, `measure`, `replay` and `calibrate` read and show."""
