"""What differs between databases, so that nothing else has to: opening, errors, owners, backups, migrating."""
