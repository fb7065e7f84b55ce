"""The drafter: guesses ahead of the verifier and hands the user the verified text."""
