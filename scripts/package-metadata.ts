/**
 * Writes packaging/homebrew/corral.rb from package.json, and optionally updates the addresses in package.json:
 *
 *   npm run package:metadata
 *   npm run package:metadata -- --address https://git.example.org/owner/corral
 *   npm run package:metadata -- --tarball corral-0.1.0.tgz
 *
 * `--address` is the address of the repository, from which repository, bugs and homepage are derived. `--tarball` is
 * the packed file of a release, whose digest is written to the formula. Until then the formula has a digest that no
 * file has.
 */
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { packageRoot } from '../core/system/package-info.ts'

interface Manifest {
  name: string
  version: string
  description: string
  license: string
  homepage?: string
  [name: string]: unknown
}

/** Reserved by RFC 2606, so a download from it always fails and can come from nobody. */
const NO_ADDRESS = 'https://corral.invalid'
const NO_DIGEST = '0'.repeat(64)

export const FORMULA = join('packaging', 'homebrew', 'corral.rb')

/** The manifest with a repository's addresses. @throws Error unless it is a plain https URL */
export function withAddress({ description, ...manifest }: Manifest, address: string): Manifest {
  const base = address.replace(/\/$/, '').replace(/\.git$/, '')
  if (!/^https:\/\/[\w.-]+(\/[\w.~-]+)+$/.test(base)) {
    throw new Error(
      `"${address}" is not the address of a repository. Use one such as https://git.example.org/owner/corral.`
    )
  }
  const addresses = {
    homepage: base,
    repository: { type: 'git', url: `git+${base}.git` },
    bugs: { url: `${base}/issues` }
  }
  const entries = Object.entries({ ...manifest, ...addresses }).filter(([name]) => !['name', 'version'].includes(name))
  const { name, version } = manifest
  return { name, version, description, ...Object.fromEntries(entries) } as Manifest
}

/** The Homebrew formula of a version. @param sha256 digest of the packed file */
export function renderFormula({ name, version, license, homepage }: Manifest, sha256 = NO_DIGEST): string {
  const base = homepage ?? NO_ADDRESS
  const text = (words: string) => `"${words.replace(/[\\"#]/g, '\\$&')}"`
  return `# Made by "npm run package:metadata" of package.json. A release gives it an address and a digest: docs/install.md#homebrew
class Corral < Formula
  desc ${text('Local model server that finds, builds and runs llama.cpp')}
  homepage ${text(base)}
  url ${text(`${base}/releases/download/v${version}/${name}-${version}.tgz`)}
  sha256 ${text(sha256)}
  license ${text(license)}

  depends_on "cmake"
  depends_on "node"

  def install
    system "npm", "install", *std_npm_args
    bin.install_symlink libexec.glob("bin/*")
  end

  service do
    run [opt_bin/"corral", "serve"]
    keep_alive crashed: true
    environment_variables PATH: std_service_path_env
    log_path var/"log/corral.log"
    error_log_path var/"log/corral.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/corral --version")
  end
end
`
}

function main(): void {
  const { values } = parseArgs({ options: { address: { type: 'string' }, tarball: { type: 'string' } } })
  const file = join(packageRoot, 'package.json')
  let manifest = JSON.parse(readFileSync(file, 'utf8')) as Manifest
  if (values.address !== undefined) {
    manifest = withAddress(manifest, values.address)
    writeFileSync(file, `${JSON.stringify(manifest, undefined, 2)}\n`)
    console.log(`Wrote ${file}`)
  }
  let digest: string | undefined
  if (values.tarball !== undefined) {
    const packed = `${manifest.name}-${manifest.version}.tgz`
    if (basename(values.tarball) !== packed)
      throw new Error(`The file has the wrong name. The packed file of this version is ${packed}.`)
    digest = createHash('sha256').update(readFileSync(values.tarball)).digest('hex')
  }
  writeFileSync(join(packageRoot, FORMULA), renderFormula(manifest, digest))
  console.log(`Wrote ${join(packageRoot, FORMULA)}`)
}

if (import.meta.url === pathToFileURL(process.argv[1]!).href) main()
