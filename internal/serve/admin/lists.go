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

func (p *Popups) lists(_ http.ResponseWriter, r *http.Request) (any, error) {
	all, err := p.Campaigns.Lists(r.Context())
	if err != nil {
		return nil, err
	}
	return map[string][]popup.ListVersion{"lists": append([]popup.ListVersion{}, all...)}, nil // [] in JSON, not null
}

// replaceList answers PUT: the body is one user's id per line.
func (p *Popups) replaceList(w http.ResponseWriter, r *http.Request) (any, error) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "text/plain" {
		return nil, newProblem(http.StatusUnsupportedMediaType, "send text/plain, one id per line")
	}
	tooLarge := newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", listBytesMax))
	if r.ContentLength > listBytesMax {
		return nil, tooLarge
	}
	upload := &listUpload{user: p.User, control: http.NewResponseController(w)}
	_ = upload.control.SetWriteDeadline(time.Time{}) // it takes as long as it takes
	upload.lines = bufio.NewScanner(http.MaxBytesReader(w, r.Body, listBytesMax))
	list, err := p.Campaigns.ReplaceList(r.Context(), r.PathValue("list"), upload.users(), authorOf(r))
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return nil, tooLarge
	case len(upload.flaws) > 0:
		return nil, flawed(http.StatusUnprocessableEntity, upload.flaws...)
	case errors.Is(err, popup.ErrList):
		return nil, newProblem(http.StatusUnprocessableEntity, err.Error())
	case upload.lines.Err() != nil:
		return nil, newProblem(http.StatusBadRequest, "the body cannot be read")
	}
	return list, err
}

// deleteList answers DELETE.
func (p *Popups) deleteList(w http.ResponseWriter, r *http.Request) (any, error) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
	err := p.Campaigns.DeleteList(r.Context(), r.PathValue("list"), authorOf(r))
	switch {
	case errors.Is(err, popup.ErrNoList):
		return nil, newProblem(http.StatusNotFound, popup.ErrNoList.Error())
	case errors.Is(err, popup.ErrListUsed):
		return nil, newProblem(http.StatusConflict, err.Error())
	}
	return nil, err
}

// listUpload reads the ids of a body.
type listUpload struct {
	user    param.Type
	control *http.ResponseController
	lines   *bufio.Scanner
	flaws   []Flaw // the first ones
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
				u.flaws = append(u.flaws, Flaw{Field: "user", Line: n, Message: fmt.Sprintf("line %d: %v", n, err)})
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
