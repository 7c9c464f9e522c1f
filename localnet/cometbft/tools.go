//go:build tools

// Package tools pins the CometBFT binary that the devnet runs: go.mod names the version, go.sum its hashes.
package tools

import _ "github.com/cometbft/cometbft/cmd/cometbft"
