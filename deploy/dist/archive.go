package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// entry is a file of an archive; a name that ends in a slash is a directory.
type entry struct {
	name    string
	mode    int64
	content []byte
	owner   int // user and group
}

// writeTar writes the entries in their order, with the same time each.
func writeTar(to io.Writer, at time.Time, entries []entry) error {
	w := tar.NewWriter(to)
	for _, e := range entries {
		header := &tar.Header{
			Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: at, Uid: e.owner, Gid: e.owner, Typeflag: tar.TypeReg,
			Format: tar.FormatPAX,
		}
		if e.name[len(e.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(e.content); err != nil {
			return err
		}
	}
	return w.Close()
}

// archived returns the files of the source that the archive has beside the program, by their names there.
func archived() [][2]string {
	return [][2]string{
		{"LICENSE", "LICENSE"},
		{"README.md", "README.md"},
		{"CHANGELOG.md", "CHANGELOG.md"},
		{"spillway.1", "deploy/package/spillway.1"},
		{"spillway.yaml", "deploy/package/spillway.yaml"},
		{"completion/spillway.bash", "deploy/package/spillway.bash"},
		{"completion/_spillway", "deploy/package/_spillway"},
		{"completion/spillway.fish", "deploy/package/spillway.fish"},
		{"systemd/spillway.service", "deploy/systemd/spillway.service"},
		{"systemd/spillway.socket", "deploy/systemd/spillway.socket"},
	}
}

// writeArchive writes the archive for hosts that have no package manager of ours.
func (r release) writeArchive(file, binary string) error {
	top := fmt.Sprintf("spillway-%s/", r.version)
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	entries := []entry{{name: top, mode: 0o755}, {name: top + "spillway", mode: 0o755, content: program}}
	for _, names := range archived() {
		content, err := os.ReadFile(filepath.Join(r.root, names[1]))
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: top + names[0], mode: 0o644, content: content})
	}
	var plain bytes.Buffer
	if err := writeTar(&plain, r.time, entries); err != nil {
		return err
	}
	packed, err := compress(plain.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(file, packed, 0o644)
}

// compress returns content in the format of gzip, without a time or a name.
func compress(content []byte) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
