"""What the reproductions share: settings, jobs that are done once, claims with their verdicts, pages and figures."""
