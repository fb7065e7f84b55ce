"""The verifier: an ordinary decoder that drafts make faster and never steer."""
