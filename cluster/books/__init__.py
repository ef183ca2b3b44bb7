"""The books as clients, terminals and scrapers get them."""
