"""The verbs of people: teams, and the tokens by which they enter."""
