package target

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"mime"
	"mime/multipart"
	"path/filepath"
	"strings"
)

// ParseForm builds a multipart/form-data body (RFC 7578) from fields of the forms
// NAME=VALUE, in which VALUE is a template, and NAME=@PATH for a file, which is
// sent as it is. The boundary is a hash of the fields.
func ParseForm(fields []string) (contentType Header, body Template, err error) {
	var parts []Template
	hash := sha256.New()
	for _, field := range fields {
		name, text, found := strings.Cut(field, "=")
		if !found || name == "" {
			return Header{}, Template{}, errors.New("--form: write NAME=VALUE or NAME=@PATH")
		}
		disposition := multipart.FileContentDisposition(name, "")
		disposition = strings.TrimSuffix(disposition, `; filename=""`)
		var value Template
		if path, isFile := strings.CutPrefix(text, "@"); isFile {
			content, err := ReadFile(path)
			if err != nil {
				return Header{}, Template{}, fmt.Errorf("--form %s: %w", name, err)
			}
			text = string(content)
			value = PlainTemplate(text)
			kind := cmp.Or(mime.TypeByExtension(filepath.Ext(path)), "application/octet-stream")
			disposition = multipart.FileContentDisposition(name, filepath.Base(path)) + "\r\nContent-Type: " + kind
		} else if value, err = ParseTemplate(text); err != nil {
			return Header{}, Template{}, fmt.Errorf("--form %s: %w", name, err)
		}
		fmt.Fprintf(hash, "%s\x00%d\x00%s", name, len(text), text)
		parts = append(parts, PlainTemplate("Content-Disposition: "+disposition+"\r\n\r\n"), value)
	}
	boundary := fmt.Sprintf("%x", hash.Sum(nil)[:20])
	for i := 0; i < len(parts); i += 2 {
		body.join(PlainTemplate("--" + boundary + "\r\n"))
		body.join(parts[i])
		body.join(parts[i+1])
		body.join(PlainTemplate("\r\n"))
	}
	body.join(PlainTemplate("--" + boundary + "--\r\n"))
	return Header{"Content-Type", "multipart/form-data; boundary=" + boundary}, body, nil
}
