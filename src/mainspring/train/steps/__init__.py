"""What a step is: the state it changes, the program that changes it, its pace, and what is done when it fails."""
