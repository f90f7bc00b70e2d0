package admin

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
)

// Bounds of an uploaded list.
const (
	listBytesMax   = 1 << 30
	listLineMax    = 4096
	listFlawsMax   = 20               // lines in one answer
	listReadWithin = 30 * time.Second // for some 1,000 lines
	listUploadMax  = 30 * time.Minute // for all lines: other uploads wait meanwhile
)

// listView is a list of users in the API.
type listView struct {
	Name    string       `json:"name"`
	Version int64        `json:"version"`
	Users   int64        `json:"users"`
	At      popup.Moment `json:"replaced_at"` // null: not known
}

func newListView(l popup.ListVersion) listView {
	return listView{l.Name, l.Version, l.Size, popup.Moment{Time: l.At}}
}

func (p *Popups) lists(w http.ResponseWriter, r *http.Request) {
	all, err := p.Campaigns.Lists(r.Context())
	if err != nil {
		writeDown(w, err)
		return
	}
	views := []listView{}
	for _, l := range all {
		views = append(views, newListView(l))
	}
	writeJSON(w, "application/json", http.StatusOK, struct {
		Lists []listView `json:"lists"`
	}{views})
}

// replaceList answers PUT: the body is one user's id per line.
func (p *Popups) replaceList(w http.ResponseWriter, r *http.Request) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "text/plain" {
		writeProblem(w, http.StatusUnsupportedMediaType, "send text/plain, one id per line")
		return
	}
	if r.ContentLength > listBytesMax {
		writeProblem(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", listBytesMax))
		return
	}
	upload := &listUpload{user: p.User, control: http.NewResponseController(w)}
	_ = upload.control.SetWriteDeadline(time.Time{}) // it takes as long as it takes
	upload.lines = bufio.NewScanner(http.MaxBytesReader(w, r.Body, listBytesMax))
	list, err := p.Campaigns.ReplaceList(r.Context(), r.PathValue("list"), upload.users(), authorOf(r))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		writeProblem(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", listBytesMax))
	case len(upload.flaws) > 0:
		writeFlaws(w, http.StatusUnprocessableEntity, upload.flaws...)
	case errors.Is(err, popup.ErrList):
		writeProblem(w, http.StatusUnprocessableEntity, err.Error())
	case upload.lines.Err() != nil:
		writeProblem(w, http.StatusBadRequest, "the body cannot be read")
	case err != nil:
		writeDown(w, err)
	default:
		writeJSON(w, "application/json", http.StatusOK, newListView(list))
	}
}

// deleteList answers DELETE.
func (p *Popups) deleteList(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
	err := p.Campaigns.DeleteList(r.Context(), r.PathValue("list"), authorOf(r))
	switch {
	case errors.Is(err, popup.ErrNoList):
		writeProblem(w, http.StatusNotFound, popup.ErrNoList.Error())
	case errors.Is(err, popup.ErrListUsed):
		writeProblem(w, http.StatusConflict, err.Error())
	case err != nil:
		writeDown(w, err)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// listUpload reads the ids of a body.
type listUpload struct {
	user    param.Type
	control *http.ResponseController
	lines   *bufio.Scanner
	flaws   []flaw // the first ones
}

// readDeadline returns until when the next lines of an upload that began at some time must be read.
func readDeadline(began, now time.Time) time.Time {
	if last := began.Add(listUploadMax); now.Add(listReadWithin).After(last) {
		return last
	}
	return now.Add(listReadWithin)
}

var errLines = errors.New("some lines are not valid")

// users yields the ids in canonical form, until a line is not valid. It then looks for more
// such lines, and yields an error at the end. Empty lines are skipped.
func (u *listUpload) users() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		u.lines.Buffer(nil, listLineMax)
		began := time.Now() // it may have waited for another upload
		_ = u.control.SetReadDeadline(readDeadline(began, began))
		for n := 1; u.lines.Scan() && len(u.flaws) < listFlawsMax; n++ {
			if n%1000 == 0 {
				_ = u.control.SetReadDeadline(readDeadline(began, time.Now()))
			}
			line := bytes.TrimSuffix(u.lines.Bytes(), []byte("\r"))
			if n == 1 {
				line = bytes.TrimPrefix(line, []byte("\ufeff"))
			}
			if len(line) == 0 {
				continue
			}
			id, err := param.Parse(param.Param{Name: "user", Type: u.user}, string(line))
			if err == nil && popup.CheckUser(id) != nil {
				err = fmt.Errorf("user must be UTF-8 text of 1 to %d bytes", popup.UserBytesMax)
			}
			switch {
			case err != nil:
				u.flaws = append(u.flaws, flaw{Field: "user", Line: n, Message: fmt.Sprintf("line %d: %v", n, err)})
			case len(u.flaws) == 0 && !yield(id, nil):
				return
			}
		}
		_ = u.control.SetReadDeadline(time.Time{})
		switch err := u.lines.Err(); {
		case len(u.flaws) > 0:
			yield("", errLines)
		case errors.Is(err, bufio.ErrTooLong):
			yield("", fmt.Errorf("%w: a line has more than %d bytes", popup.ErrList, listLineMax))
		case err != nil:
			yield("", err)
		}
	}
}
