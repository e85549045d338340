import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'
import { OLLAMA_VERSION } from '../../plugins/api-ollama/routes.ts'

const MODULE = 'github.com/ollama/ollama'
const folder = join(packageRoot, '.cache', 'ollama')

/**
 * Packages of Ollama's that its command line needs for being a server only. They hold llama.cpp, which takes long to
 * compile and is not whole in Go's copy of the module; here they say so.
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
      // The next one may be there.
    }
  }
  return undefined
}

/**
 * Ollama's own command line as a client, built from its source with Go in about a minute and kept in `.cache`.
 * @returns its path, or why there is none
 */
export function ollamaCommandLine(): { path: string } | { missing: string } {
  const path = join(folder, `ollama-${OLLAMA_VERSION}`)
  if (existsSync(path)) return { path }
  const go = goProgram()
  if (go === undefined) return { missing: 'there is no Go to build it with' }
  const env = { ...process.env, CGO_ENABLED: '0', GOFLAGS: '-mod=mod', GOTOOLCHAIN: 'local' }
  const source = join(folder, 'source')
  rmSync(source, { recursive: true, force: true })
  mkdirSync(source, { recursive: true })
  let module: { Dir: string }
  try {
    const download = ['mod', 'download', '-json', `${MODULE}@v${OLLAMA_VERSION}`]
    module = JSON.parse(execFileSync(go, download, { cwd: folder, env, encoding: 'utf8', stdio: 'pipe' }))
  } catch (error) {
    return { missing: `its source cannot be had: ${String((error as { stderr?: unknown }).stderr ?? error)}` }
  }
  execFileSync('cp', ['-R', `${module.Dir}/.`, source])
  execFileSync('chmod', ['-R', 'u+w', source])
  for (const [name, text] of Object.entries(STUBS)) {
    const directory = join(source, name)
    for (const file of readdirSync(directory)) if (file.endsWith('.go')) rmSync(join(directory, file))
    writeFileSync(join(directory, 'stub.go'), text)
  }
  const flags = ['-ldflags', `-X ${MODULE}/version.Version=${OLLAMA_VERSION}`]
  execFileSync(go, ['build', ...flags, '-o', `${path}.new`, '.'], { cwd: source, env, stdio: 'inherit' })
  renameSync(`${path}.new`, path)
  rmSync(source, { recursive: true, force: true })
  return { path }
}
