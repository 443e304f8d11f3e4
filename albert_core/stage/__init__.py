"""What any stage needs: manifest, storage, settings, errors, command line, lock, log. No torch."""
