package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"strings"

	"spillway/internal/uplot"
)

// asset is a file that pages load.
type asset struct {
	kind    string // media type
	version string // changes with the text
	text    []byte
	gzip    []byte
}

// readAssets returns the files by their names.
func readAssets() map[string]*asset {
	all := map[string]*asset{"uplot.js": newAsset("uplot.js", uplot.Script()), "uplot.css": newAsset("uplot.css", uplot.Style())}
	for _, name := range []string{"console.css", "console.js", "htmx.min.js", "icon.svg"} {
		text, err := files.ReadFile("assets/" + name)
		if err != nil {
			panic("bug: assets: " + err.Error())
		}
		all[name] = newAsset(name, string(text))
	}
	return all
}

func newAsset(name, text string) *asset {
	sum := sha256.Sum256([]byte(text))
	a := &asset{kind: mime.TypeByExtension(path.Ext(name)), version: hex.EncodeToString(sum[:6]), text: []byte(text)}
	var out bytes.Buffer
	packed, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid
	_, _ = packed.Write(a.text)                                  // a buffer takes all
	_ = packed.Close()
	a.gzip = out.Bytes()
	return a
}

// assetURL returns the address of a file, which is another one for another text.
func (c *Console) assetURL(name string) string {
	return "/console/assets/" + name + "?v=" + c.assets[name].version
}

func (c *Console) serveAsset(w http.ResponseWriter, r *http.Request) {
	a := c.assets[r.PathValue("name")]
	if a == nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	text := a.text
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		text = a.gzip
	}
	_, _ = w.Write(text) // if it fails, the client has left
}
