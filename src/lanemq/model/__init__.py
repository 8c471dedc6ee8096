"""The nouns: values without behaviour beyond their own invariants. Everything else imports these."""
