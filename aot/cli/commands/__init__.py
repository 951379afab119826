"""One module per command: ``configure_parser`` declares its arguments, ``execute`` runs it."""
