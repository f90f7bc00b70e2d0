// Command dist builds what a release consists of: for linux on amd64 and arm64 an archive, a Debian package and an image, and their
// SHA-256 sums. The same source makes the same bytes, wherever and whenever it is built.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	root := flag.String("root", "..", "the repository's `directory`")
	out := flag.String("o", "../dist", "`directory` of the files, which is emptied first")
	version := flag.String("version", "", "another version than that of the file VERSION, for trials of an upgrade")
	only := flag.String("arch", "amd64,arm64", "build for these architectures only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := build(ctx, *root, *out, *version, strings.Split(*only, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// build fills the directory out from the source in the directory root.
func build(ctx context.Context, root, out, version string, arches []string) error {
	r, err := describe(ctx, root, out, version)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, arch := range arches {
		if err := r.build(ctx, arch); err != nil {
			return fmt.Errorf("build for %s: %w", arch, err)
		}
	}
	return writeSums(r.out)
}

// release is what all files of a release have in common.
type release struct {
	root, out string
	version   string
	revision  string    // of the source
	time      time.Time // of the source: the time of every file
}

// describe reads the version, and from git the revision and its time. Without git they are unknown and the time is fixed.
func describe(ctx context.Context, root, out, version string) (release, error) {
	r := release{version: version, revision: "unknown", time: time.Unix(0, 0)}
	var err error
	if r.root, err = filepath.Abs(root); err != nil {
		return r, err
	}
	if r.out, err = filepath.Abs(out); err != nil {
		return r, err
	}
	if r.version == "" {
		text, err := os.ReadFile(filepath.Join(r.root, "VERSION"))
		if err != nil {
			return r, err
		}
		r.version = strings.TrimSpace(string(text))
	}
	commit, err := output(ctx, r.root, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return r, nil // an archive of the source
	}
	revision, seconds, _ := strings.Cut(commit, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	r.revision, r.time = revision, time.Unix(unix, 0).UTC()
	return r, err
}

// build makes the files of one architecture.
func (r release) build(ctx context.Context, arch string) error {
	stage, err := os.MkdirTemp("", "spillway-dist")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	binary := filepath.Join(stage, "spillway")
	if err := r.compile(ctx, arch, binary); err != nil {
		return err
	}
	name := filepath.Join(r.out, fmt.Sprintf("spillway_%s_linux_%s", r.version, arch))
	if err := r.writeArchive(name+".tar.gz", binary); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	if err := r.writePackage(stage, arch); err != nil {
		return fmt.Errorf("write the package: %w", err)
	}
	if err := r.writeImage(ctx, name+".image.tar", binary, arch); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}
