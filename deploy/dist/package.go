package main

import (
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
)

// writePackage writes the Debian package that deploy/package/nfpm.yaml describes. The program is in the directory stage.
func (r release) writePackage(stage, arch string) error {
	for name, source := range map[string]string{"spillway.1.gz": "deploy/package/spillway.1", "changelog.gz": "CHANGELOG.md"} {
		content, err := os.ReadFile(filepath.Join(r.root, source))
		if err != nil {
			return err
		}
		packed, err := compress(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(stage, name), packed, 0o644); err != nil {
			return err
		}
	}
	values := map[string]string{"ARCH": arch, "VERSION": r.version, "STAGE": stage, "DEPLOY": filepath.Join(r.root, "deploy")}
	scripts := filepath.Join(r.root, "deploy", "package")
	config, err := nfpm.ParseFileWithEnvMapping(filepath.Join(scripts, "nfpm.yaml"), func(name string) string { return values[name] })
	if err != nil {
		return err
	}
	info, err := config.Get("deb")
	if err != nil {
		return err
	}
	info.Scripts = nfpm.Scripts{
		PostInstall: filepath.Join(scripts, "postinst"), PreRemove: filepath.Join(scripts, "prerm"), PostRemove: filepath.Join(scripts, "postrm"),
	}
	info.MTime = r.time
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(r.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, file); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}
