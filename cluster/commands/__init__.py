"""The commands of the `blockyard` shell tool."""
