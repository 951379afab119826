"""Products that are scaled or grouped, for the families that declare them: f8, experts and f32. No kernel is declared here."""
