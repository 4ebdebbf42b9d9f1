"""What may never be wrong in a world of the fault proof, and what is known of it past its faults."""
