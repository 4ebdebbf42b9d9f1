"""The command line, `ms`: thin verbs over the SDK."""
