package sqlite

import "spillway/internal/serve/stream"

// Pairs returns the pairs of types that a stream accepts.
func Pairs() (list []stream.Pair) {
	for _, p := range pairs {
		list = append(list, p.Pair)
	}
	return list
}
