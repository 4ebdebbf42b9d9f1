"""What every part of the app stands on: clock and dice, the home folder, specs, the HTTP client."""
