"""One file per scenario: what is sent, what is waited for, which figures come out."""
