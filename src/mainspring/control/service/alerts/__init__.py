"""What the lab promises, and when somebody is told that it is not kept: values, and what is written from them."""
