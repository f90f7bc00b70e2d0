package popup

import (
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Bounds of lists.
const (
	ListsMax     = 100
	ListUsersMax = 10_000_000
	ListBytesMax = 64 // of a name
)

// Lists is named lists of users. A user takes 8 bytes of memory, a hash of the id. A user who
// is not on a list of n users counts as on it with probability n / 2^64. Lists is immutable.
// Of nil it is not known which lists exist.
type Lists struct {
	hashes map[string][]uint64 // by name; sorted; nil: it exists and was not read yet
}

// IsList reports whether name is a valid name of a list.
func IsList(name string) bool { return isName(name, '-', ListBytesMax) }

// UserHash returns what lists keep of a user.
func UserHash(user string) uint64 { return xxhash.Sum64String(user) }

// with returns lists in which name has exactly the users with these sorted hashes.
func (l *Lists) with(name string, hashes []uint64) *Lists {
	next := &Lists{hashes: map[string][]uint64{}}
	if l != nil {
		maps.Copy(next.hashes, l.hashes)
	}
	if hashes == nil {
		hashes = []uint64{}
	}
	next.hashes[name] = hashes
	return next
}

// only returns lists with these names alone. Those that l does not have wait to be read.
func (l *Lists) only(names []string) *Lists {
	next := &Lists{hashes: map[string][]uint64{}}
	for _, name := range names {
		next.hashes[name], _ = l.find(name)
	}
	return next
}

// unread returns the first of these lists that may exist and was not read yet; "" if there is
// none.
func (l *Lists) unread(names []string) string {
	for _, name := range names {
		if l == nil {
			return name
		}
		if hashes, exists := l.hashes[name]; exists && hashes == nil {
			return name
		}
	}
	return ""
}

// absent returns the first of these lists that does not exist; "" if there is none.
func (l *Lists) absent(names []string) string {
	for _, name := range names {
		if _, known := l.find(name); !known {
			return name
		}
	}
	return ""
}

// Contains reports whether a user is on a list. No user is on one that does not exist.
func (l *Lists) Contains(name, user string) bool {
	hashes, known := l.find(name)
	if !known || user == "" {
		return false
	}
	_, found := slices.BinarySearch(hashes, UserHash(user))
	return found
}

// Names returns the names of the lists, sorted, also of those that were not read yet.
func (l *Lists) Names() []string {
	if l == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(l.hashes))
}

// Len returns how many users are on a list.
func (l *Lists) Len(name string) int {
	hashes, _ := l.find(name)
	return len(hashes)
}

func (l *Lists) find(name string) (hashes []uint64, known bool) {
	if l == nil {
		return nil, false
	}
	hashes = l.hashes[name]
	return hashes, hashes != nil
}
