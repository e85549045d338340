import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { isSystemError } from '../core/errors.ts'
import { packageRoot, version } from '../core/system/package-info.ts'
import { fillTemplate } from './shipped-text.ts'

interface Skeleton {
  example: string
  /** Matches the names to replace with the new plugin's name. */
  names: RegExp
  /** A command that tries the plugin. */
  trial: (name: string) => string
}

const curl = (path: string, body: string) => `curl http://127.0.0.1:11435${path} -d '${body}'`
const chat = (model: string) =>
  curl('/v1/chat/completions', `{"model": "${model}", "messages": [{"role": "user", "content": "Hello there"}]}`)

const SKELETONS = {
  engine: { example: 'echo-engine', names: /\becho(-engine)?(?=['/])/g, trial: name => chat(`${name}/parrot`) },
  filter: { example: 'request-filter', names: /request-filter/g, trial: () => chat('corral/tiny-chat') },
  hub: { example: 'web-hub', names: /web-hub/g, trial: name => `corral pull ${name}:owner/name` },
  surface: {
    example: 'describe-api',
    names: /describe-api/g,
    trial: name => curl(`/${name}/describe`, '{"model": "corral/tiny-chat"}')
  }
} satisfies Record<string, Skeleton>

export type PluginKind = keyof typeof SKELETONS
export const KINDS = Object.keys(SKELETONS) as PluginKind[]

/**
 * The `corral` dependency of a new plugin: the version if npm installed this corral from a registry, otherwise this
 * folder, which exists only on this machine.
 */
async function ownDependency(): Promise<string> {
  // npm's record of the node_modules folder that contains this package.
  const record = await readFile(join(packageRoot, '..', '.package-lock.json'), 'utf8').catch(error => {
    if (isSystemError(error, 'ENOENT')) return '{}'
    throw error
  })
  const { packages } = JSON.parse(record) as { packages?: Record<string, { resolved?: string }> }
  const resolved = packages?.['node_modules/corral']?.resolved ?? ''
  return /^https?:.*\/-\//.test(resolved) ? `^${version}` : `file:${packageRoot}`
}

/** The files of a new plugin by path: a renamed copy of an example. */
export async function pluginSkeleton(kind: PluginKind, name: string): Promise<Record<string, string>> {
  const { example, names, trial }: Skeleton = SKELETONS[kind]
  const copy = async (file: string) =>
    (await readFile(join(packageRoot, 'examples', example, file), 'utf8')).replace(names, name)
  const corral = await ownDependency()
  const values = {
    name,
    example,
    // A path may contain backslashes.
    corral: JSON.stringify(corral).slice(1, -1),
    trial: trial(name),
    folder: corral.startsWith('file:') ? '' : []
  }
  const text = (file: string) => fillTemplate(`plugin/${file}`, values)
  return {
    'package.json': text('manifest.json'),
    'tsconfig.json': text('compiler.json'),
    '.gitignore': text('gitignore'),
    'README.md': text('README.md'),
    'src/index.ts': await copy('index.ts'),
    'src/index.test.ts': await copy('index.test.ts')
  }
}
