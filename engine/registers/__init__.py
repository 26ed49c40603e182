"""What registers need beside their own triggers: maintenance."""
