"""The pinned CometBFT: go.mod and go.sum name it exactly, `build` makes the binary once."""
