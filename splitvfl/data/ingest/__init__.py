"""Files of any size into tables on disk, one folder per party, in bounded memory."""
