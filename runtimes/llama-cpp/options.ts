import { type Static, Type } from 'typebox'
import { Duration, Path, Timeout } from '../../core/config/core-schema.ts'

/** These settings decide which programs are downloaded. */
const Origin = (title: string, pattern: string, more: { default: string; description: string }) =>
  Type.String({ title, pattern, needsTrust: true, ...more })

export const RuntimesOptions = Type.Object({
  llama_cpp: Path({
    default: '',
    needsTrust: true,
    description: 'Folder of a llama.cpp build to use (llama-server and its companions); empty looks for one'
  }),
  sources: Type.Array(Type.Enum(['system', 'release', 'source']), {
    default: ['system', 'release', 'source'],
    uniqueItems: true,
    description:
      'Where llama.cpp builds come from, tried in this order: this system, the official release, compiled from source'
  }),
  load_timeout: Timeout({
    default: '5m',
    description: 'How long loading a model may make no progress before corral gives up'
  }),
  hang_timeout: Duration({
    default: '2m',
    description:
      'How long an engine with open requests may neither answer nor use the processor before corral ends it; 0 never ends it (limits.stuck_after covers engines that compute)'
  }),
  engine_arguments: Type.Array(Type.String(), {
    default: [],
    needsTrust: true,
    description: "More flags for each llama-server, after corral's own"
  }),
  release: Type.Object({
    api_url: Origin('an address such as https://api.github.com', '^https?://\\S+$', {
      default: 'https://api.github.com',
      description: "Server with GitHub's API for releases"
    }),
    download_url: Origin('an address such as https://mirror.example.org', '^(https?://\\S+)?$', {
      default: '',
      description: 'Mirror to download from instead of https://github.com; empty uses github.com'
    }),
    repository: Origin('an owner and a repository such as ggml-org/llama.cpp', '^[\\w.-]+/[\\w.-]+$', {
      default: 'ggml-org/llama.cpp',
      description: 'Repository whose releases are used'
    }),
    tag: Origin('the name of a release such as b10485, or latest', '^[\\w.-]+$', {
      default: 'latest',
      description: 'Release to use, such as b10485; "latest" is the newest stable one'
    }),
    connect_timeout: Timeout({
      default: '3s',
      description: 'How long to wait for a connection to the release server'
    })
  }),
  source: Type.Object({
    package: Origin('the name of an npm package', '^(@[\\w.-]+/)?[\\w.-]+$', {
      default: 'node-llama-cpp',
      description: "npm package that carries llama.cpp's source as a git bundle"
    }),
    version: Origin('an exact version such as 3.22.1', '^\\d+\\.\\d+\\.\\d+[\\w.-]*$', {
      default: '3.22.1',
      description: 'Exact version of the package'
    }),
    prebuilt_libraries: Type.Boolean({
      default: true,
      description:
        'Compile only the programs and link them with the prebuilt libraries of the same version, if that works'
    })
  })
})
export type RuntimesOptions = Static<typeof RuntimesOptions>
