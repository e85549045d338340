import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { isSystemError } from '../core/errors.ts'
import { packageRoot, version } from '../core/system/package-info.ts'

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

const FOLDER_NOTE = `
The development dependency \`corral\` in \`package.json\` is a folder on the machine where this plugin was created. Change it to develop the plugin on another machine. Users of the plugin don't need it.
`

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
  const json = (value: unknown) => `${JSON.stringify(value, undefined, 2)}\n`
  const corral = await ownDependency()
  const note = corral.startsWith('file:') ? FOLDER_NOTE : ''
  return {
    'package.json': json({
      name: `corral-plugin-${name}`,
      version: '0.1.0',
      type: 'module',
      exports: './dist/index.js',
      files: ['dist', '!dist/*.test.js'],
      corral: { api: 1 },
      scripts: { build: 'tsc', prepack: 'tsc', test: 'tsc && node --test dist/index.test.js' },
      devDependencies: { '@types/node': '^20.19.43', corral, typescript: '^5.9.0 || ^7.0.0' }
    }),
    'tsconfig.json': json({
      compilerOptions: {
        target: 'es2023',
        module: 'nodenext',
        rootDir: 'src',
        outDir: 'dist',
        strict: true,
        skipLibCheck: true,
        types: ['node']
      },
      include: ['src']
    }),
    'src/index.ts': await copy('index.ts'),
    'src/index.test.ts': await copy('index.test.ts'),
    '.gitignore': 'node_modules/\ndist/\n',
    'README.md': `# ${name}

A plugin for corral, copied from its example ${example}. Change its behaviour and its description.

\`\`\`sh
npm install
npm test
corral plugin check .
\`\`\`
${note}
## Try it

Add the path of this folder to a \`config.yaml\`, and start the server with that file:

\`\`\`yaml
plugins: [/path/to/${name}]
\`\`\`

\`\`\`sh
corral serve --config config.yaml
${trial(name)}
\`\`\`

## Share it

\`npm pack\` creates \`corral-plugin-${name}-0.1.0.tgz\`. To use it, run \`npm install\` with that file in the folder of a \`config.yaml\`, and add its name there:

\`\`\`yaml
plugins: [corral-plugin-${name}]
\`\`\`
`
  }
}
