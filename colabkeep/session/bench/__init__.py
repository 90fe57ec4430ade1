"""What saving costs on this machine and with this storage, measured in less than a minute."""
