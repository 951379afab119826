"""What is made for Blackwell. No kernel is declared here."""
