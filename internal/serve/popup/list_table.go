package popup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"spillway/internal/serve/audit"
)

// Errors of the tables of lists.
var (
	// ErrNoList: no list has that name.
	ErrNoList = errors.New("no such list")
	// ErrListChanged: the list was replaced or deleted meanwhile. Try again.
	ErrListChanged = errors.New("the list was replaced or deleted meanwhile: try again")
	// ErrList: the list is not valid; what it wraps says why.
	ErrList = errors.New("the list is refused")
)

// ListVersion is a named list of users in the database.
type ListVersion struct {
	Name    string `json:"name"`
	Version int64  `json:"version"` // the version of all campaigns at the list's last change
	Size    int64  `json:"users"`   // how many
	At      Moment `json:"replaced_at"`
}

// ListTables is where a database stores lists of users, as sorted hashes without repeats.
type ListTables interface {
	// Lists returns the lists by name.
	Lists(context.Context) ([]ListVersion, error)
	// ListUsers returns the hashes of a list's users. Errors wrap ErrNoList or ErrListChanged.
	ListUsers(ctx context.Context, name string) (ListVersion, []uint64, error)
	// ReplaceList makes a list have the users with these hashes, or creates it. Readers see
	// the old list or the new one. by is who does it. After an error the list may be replaced.
	ReplaceList(ctx context.Context, name string, hashes []uint64, by audit.Author) (ListVersion, error)
	// DeleteList deletes a list. The error wraps ErrNoList if there is none.
	DeleteList(ctx context.Context, name string, by audit.Author) error
}

// checkNewList returns an error that wraps ErrList if a list cannot be added to, or replaced
// among, those that there are.
func checkNewList(name string, all []ListVersion) error {
	if !IsList(name) {
		return fmt.Errorf("%w: a name is 1 to %d lower-case letters, digits and -, not - first", ErrList, ListBytesMax)
	}
	others := 0
	for _, list := range all {
		if list.Name != name {
			others++
		}
	}
	if others >= ListsMax {
		return fmt.Errorf("%w: there are %d lists, the maximum", ErrList, ListsMax)
	}
	return nil
}

// listBuilder collects the hashes of at most limit users, repeated ones included.
type listBuilder struct {
	limit  int
	hashes []uint64
}

// add adds a user. Errors wrap ErrList.
func (b *listBuilder) add(user string) error {
	n := len(b.hashes) + 1
	if n > b.limit {
		return fmt.Errorf("%w: more than %d users", ErrList, b.limit)
	}
	if CheckUser(user) != nil {
		return fmt.Errorf("%w: user %d must be UTF-8 text of 1 to %d bytes without zero bytes", ErrList, n, UserBytesMax)
	}
	b.hashes = append(b.hashes, UserHash(user))
	return nil
}

// sorted returns the hashes in order and without repeats.
func (b *listBuilder) sorted() []uint64 {
	slices.Sort(b.hashes)
	return slices.Compact(b.hashes)
}
