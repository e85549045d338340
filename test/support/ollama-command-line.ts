import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'
import { OLLAMA_VERSION } from '../../plugins/apis/ollama/routes.ts'

const MODULE = 'github.com/ollama/ollama'
/** Cache folder for Ollama's programs. */
export const ollamaFolder = join(packageRoot, '.cache', 'ollama')

/**
 * Ollama's packages that its command line needs only to be a server. They contain llama.cpp, which takes long to
 * compile and is incomplete in Go's copy of the module. These stubs return an error.
 */
const STUBS: Record<string, string> = {
  server: `package server
import ("errors"; "net")
func Serve(net.Listener) error { return errors.New("this is a client only") }
`,
  runner: `package runner
import "errors"
func Execute([]string) error { return errors.New("this is a client only") }
`,
  'x/imagegen': `package imagegen
import ("errors"; "${MODULE}/api"; "github.com/spf13/cobra")
func RunCLI(*cobra.Command, string, string, bool, *api.Duration) error { return errors.New("this is a client only") }
func RegisterFlags(*cobra.Command) {}
func AppendFlagsDocs(*cobra.Command) {}
`
}

function goProgram(): string | undefined {
  for (const go of ['go', '/usr/local/go/bin/go']) {
    try {
      execFileSync(go, ['version'], { stdio: 'ignore' })
      return go
    } catch {
      // Try the next one.
    }
  }
  return undefined
}

/** Go, a copy of Ollama's source to build from, and the build environment. */
export interface OllamaSource {
  go: string
  directory: string
  env: NodeJS.ProcessEnv
}

/**
 * Fetches Ollama's source, of the release that the API is tested against.
 * @param copy target folder of the copy, below `.cache/ollama`. Its contents are replaced
 * @returns the build environment, or the reason why there is none
 */
export function ollamaSource(copy: string): OllamaSource | { missing: string } {
  const go = goProgram()
  if (go === undefined) return { missing: 'there is no Go to build it with' }
  const env = { ...process.env, CGO_ENABLED: '0', GOFLAGS: '-mod=mod', GOTOOLCHAIN: 'local' }
  const directory = join(ollamaFolder, copy)
  rmSync(directory, { recursive: true, force: true })
  mkdirSync(directory, { recursive: true })
  let module: { Dir: string }
  try {
    const download = ['mod', 'download', '-json', `${MODULE}@v${OLLAMA_VERSION}`]
    module = JSON.parse(execFileSync(go, download, { cwd: ollamaFolder, env, encoding: 'utf8', stdio: 'pipe' }))
  } catch (error) {
    return { missing: `its source cannot be had: ${String((error as { stderr?: unknown }).stderr ?? error)}` }
  }
  execFileSync('cp', ['-R', `${module.Dir}/.`, directory])
  execFileSync('chmod', ['-R', 'u+w', directory])
  return { go, directory, env }
}

/**
 * Ollama's own command line as a client, built from its source with Go in about a minute and kept in `.cache`.
 * @returns its path, or why there is none
 */
export function ollamaCommandLine(): { path: string } | { missing: string } {
  const path = join(ollamaFolder, `ollama-${OLLAMA_VERSION}`)
  if (existsSync(path)) return { path }
  const source = ollamaSource('source')
  if ('missing' in source) return source
  const { go, directory, env } = source
  for (const [name, text] of Object.entries(STUBS)) {
    const stubbed = join(directory, name)
    for (const file of readdirSync(stubbed)) if (file.endsWith('.go')) rmSync(join(stubbed, file))
    writeFileSync(join(stubbed, 'stub.go'), text)
  }
  const flags = ['-ldflags', `-X ${MODULE}/version.Version=${OLLAMA_VERSION}`]
  execFileSync(go, ['build', ...flags, '-o', `${path}.new`, '.'], { cwd: directory, env, stdio: 'inherit' })
  renameSync(`${path}.new`, path)
  rmSync(directory, { recursive: true, force: true })
  return { path }
}
