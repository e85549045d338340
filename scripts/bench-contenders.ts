/**
 * Installs the products that the benchmark compares with corral into `.cache`. None of them is a dependency. Products
 * that cannot be installed are reported and skipped by the benchmark. llama-server's router comes with the engine.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { CACHE } from './bench/others.ts'

const LITELLM = 'litellm[proxy]==1.106.2'
const PORTKEY = '@portkey-ai/gateway@1.15.2'
const UV = 'uv==0.13.9'

function run(command: string, ...args: string[]): boolean {
  console.log(`$ ${[command, ...args].join(' ')}`)
  return spawnSync(command, args, { stdio: 'inherit' }).status === 0
}

const installers: Record<string, () => boolean> = {
  nginx: () =>
    spawnSync('nginx', ['-v']).status === 0 ||
    (process.getuid?.() === 0 && run('apt-get', 'install', '-y', '-qq', '--no-install-recommends', 'nginx')),
  "vLLM's router": () =>
    run(process.execPath, join(packageRoot, 'dist', 'scripts', 'setup-python.js'), '--only', 'vllm-router'),
  LiteLLM() {
    const folder = join(CACHE, 'litellm')
    if (existsSync(join(folder, 'bin', 'litellm'))) return true
    const python = join(folder, 'bin', 'python')
    return (
      run('python3', '-m', 'venv', folder) &&
      run(python, '-m', 'pip', 'install', '--quiet', UV) &&
      run(python, '-m', 'uv', 'pip', 'install', '--quiet', '--python', python, LITELLM)
    )
  },
  "Portkey's gateway": () => {
    const folder = join(CACHE, 'portkey')
    if (existsSync(join(folder, 'node_modules', '@portkey-ai'))) return true
    const quiet = ['--silent', '--no-audit', '--no-fund', '--ignore-scripts']
    return run('npm', 'install', ...quiet, '--prefix', folder, PORTKEY)
  }
}

mkdirSync(CACHE, { recursive: true })
for (const [name, install] of Object.entries(installers)) {
  console.log(install() ? `${name}: installed` : `${name}: COULD NOT BE INSTALLED, so the benchmark skips it`)
}
