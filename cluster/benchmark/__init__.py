"""What `blockyard bench` measures."""
