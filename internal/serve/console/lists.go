package console

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"spillway/internal/serve/popup"
)

// lists shows the lists of users that targets name.
func (q *request) lists() error {
	d := struct {
		Lists []popup.ListVersion
		Done  string
	}{Done: savedText(q.r.URL.Query())}
	if err := q.get("/popups/lists", &d); err != nil {
		return err
	}
	return q.render(http.StatusOK, "lists", "Lists", d)
}

// uploadList replaces a list by a file with one id per line. The name comes before the file in the form.
func (q *request) uploadList() error {
	parts, err := q.r.MultipartReader()
	if err != nil {
		return &failure{Status: http.StatusBadRequest, Detail: "Choose a file."}
	}
	name := ""
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return &failure{Status: http.StatusBadRequest, Detail: "Choose a file."}
		}
		if err != nil {
			return &failure{Status: http.StatusBadRequest, Detail: "The upload was cut off. The list is as it was."}
		}
		switch part.FormName() {
		case "name":
			text, err := io.ReadAll(io.LimitReader(part, 1000))
			if err != nil {
				return &failure{Status: http.StatusBadRequest, Detail: "The upload was cut off. The list is as it was."}
			}
			name = strings.TrimSpace(string(text))
		case "file":
			if name == "" || strings.Contains(name, "/") {
				return &failure{Status: http.StatusBadRequest, Detail: "Name the list: lower-case letters, digits and -."}
			}
			if err := q.send(http.MethodPut, "/popups/lists/"+url.PathEscape(name), part, nil, "Content-Type", "text/plain"); err != nil {
				return err
			}
			return q.redirect("/console/lists?saved=uploaded")
		}
	}
}

// deleteList deletes a list whose name was typed.
func (q *request) deleteList() error {
	name := q.r.PostFormValue("list")
	if strings.TrimSpace(q.r.PostFormValue("confirm")) != name || name == "" {
		return &failure{Status: http.StatusBadRequest, Detail: "Nothing has changed: go back and type the name of the list to confirm."}
	}
	if err := q.call(http.MethodDelete, "/popups/lists/"+url.PathEscape(name), nil, nil); err != nil {
		return err
	}
	return q.redirect("/console/lists?saved=deleted")
}
