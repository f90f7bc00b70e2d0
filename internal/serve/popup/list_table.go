package popup

import (
	"errors"
	"fmt"
	"iter"
)

// Errors of the tables of lists.
var (
	// ErrNoList: no list has that name.
	ErrNoList = errors.New("no such list")
	// ErrListChanged: the list was replaced or deleted while it was read. Read it again.
	ErrListChanged = errors.New("the list was replaced or deleted meanwhile: read it again")
	// ErrListAbandoned: an upload made no progress for so long that its rows were deleted.
	ErrListAbandoned = errors.New("the upload took too long and was dropped: upload the list again")
	// ErrList: the list is not valid; what it wraps says why.
	ErrList = errors.New("the list is refused")
)

// ListVersion is a named list of users in the database.
type ListVersion struct {
	Name    string
	Version int64 // the version of all campaigns at the list's last change
	Size    int64 // users
}

// The states of a list in the database. Their numbers are stored.
const (
	ListLoading = 0 // is being written; nobody reads it
	ListCurrent = 1
	ListDropped = 2 // its rows are being deleted
)

// Bounds of lists in the database.
const (
	listBatch = 2000 // users in one transaction

	// ListAbandonedAfter is the number of seconds after which an upload without progress is
	// dropped.
	ListAbandonedAfter = 3600
)

// CheckNewList returns an error that wraps ErrList if a list cannot be added to, or replaced
// among, those that there are.
func CheckNewList(name string, all []ListVersion) error {
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

// ListBatches calls write with up to 2,000 users at once, until it returns an error. It
// refuses ids that no user can have, and too many. write must not keep the batch.
func ListBatches(users iter.Seq2[string, error], write func(batch []string) error) error {
	var batch []string
	n := 0
	for user, err := range users {
		switch n++; {
		case err != nil:
			return fmt.Errorf("read users of the list: %w", err)
		case n > ListUsersMax:
			return fmt.Errorf("%w: more than %d users", ErrList, ListUsersMax)
		case user == "" || len(user) > UserBytesMax || !isText(user):
			return fmt.Errorf("%w: user %d must be UTF-8 text of 1 to %d bytes without zero bytes", ErrList, n, UserBytesMax)
		}
		if batch = append(batch, user); len(batch) == listBatch {
			if err := write(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return write(batch)
}

// StoredList is a current list; the zero value if there is none.
type StoredList struct{ ID, Version int64 }

// ListUsers calls yield for each user of a list, in the order of the ids. find returns the
// current list, and read up to limit users after a user. The error is yield's, or wraps
// ErrNoList or ErrListChanged: what was yielded is not a list then.
func ListUsers(find func() (StoredList, error), read func(id int64, after string, limit int) ([]string, error), yield func(string) error) error {
	list, err := find()
	if err == nil && list == (StoredList{}) {
		err = ErrNoList
	}
	last := ""
	for more := err == nil; more; {
		var users []string
		if users, err = read(list.ID, last, listBatch); err != nil {
			break
		}
		for _, user := range users {
			if err := yield(user); err != nil {
				return err
			}
			last = user
		}
		more = len(users) == listBatch
	}
	if err == nil { // rows are deleted only after the list has changed
		var now StoredList
		if now, err = find(); err == nil && now != list {
			err = ErrListChanged
		}
	}
	if err != nil {
		return fmt.Errorf("read the users of a list: %w", err)
	}
	return nil
}
