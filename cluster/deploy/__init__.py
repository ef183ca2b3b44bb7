"""What runs beside Blockyard where it is deployed."""
