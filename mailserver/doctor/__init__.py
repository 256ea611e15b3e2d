"""The checks of `waku-mailserver doctor`. Each returns findings and changes nothing."""
