import { type Static, Type } from 'typebox'
import { Flag, Group, Integer, Text, Texts } from '../http/request-fields.ts'
import { type Gpu, type Hardware, HardwareSchema } from './hardware.ts'
import type { Progress, Waiting } from './progress.ts'

/* llama.cpp builds: their kinds (descriptors), their sources, and which one is used and why. */

export const BuildKindSchema = Type.Enum(['cpu', 'cuda', 'rocm', 'metal', 'vulkan', 'sycl', 'unknown'], {
  description: 'The hardware or API that it computes with'
})
export type BuildKind = Static<typeof BuildKindSchema>

/** A device that the build lists. Memory in bytes, absent if unknown. */
export const BuildDeviceSchema = Type.Object({
  id: Text('Such as CUDA0'),
  description: Text('Human-readable name'),
  totalMemory: Type.Optional(Integer('Bytes')),
  freeMemory: Type.Optional(Integer('Bytes that were free when the build was verified'))
})
export type BuildDevice = Static<typeof BuildDeviceSchema>

/** A verified build: its llama-server started, listed its devices and, if corral brought it, answered. */
export const BuildSchema = Group('A verified llama.cpp build', {
  id: Text('Unique among builds, such as release-b11347-cuda-13'),
  kind: BuildKindSchema,
  runtime: Type.Optional(Text('Name of its kind, such as cuda-13')),
  source: Text('Where it came from: system, release, archive, source'),
  version: Text('As llama-server --version prints it'),
  commit: Type.Optional(Text("Commit of llama.cpp's source")),
  directory: Text('Its folder'),
  executables: Group('Absolute paths of its programs', {
    server: Text('llama-server'),
    quantize: Type.Optional(Text('llama-quantize')),
    ggufSplit: Type.Optional(Text('llama-gguf-split')),
    fitParams: Type.Optional(Text('llama-fit-params')),
    rpcServer: Type.Optional(Text('ggml-rpc-server'))
  }),
  digest: Text('SHA-256 of llama-server'),
  origin: Text('A path, address or package'),
  devices: Type.Array(BuildDeviceSchema, { description: 'Its devices besides the processor' }),
  warnings: Type.Optional(Texts('Problems such as a GPU of this machine that the build does not use')),
  converter: Type.Optional(
    Group('Converter of SafeTensors models, if the build has one', {
      directory: Text('Folder with convert_hf_to_gguf.py'),
      version: Text('Version of llama.cpp that it comes from')
    })
  )
})
export type Build = Static<typeof BuildSchema>

/** A build that is not verified yet. */
export interface BuildCandidate extends Omit<Build, 'version' | 'commit' | 'digest' | 'devices' | 'warnings'> {
  /** Whether the user chose exactly this build: if it does not work, no other build replaces it. */
  required?: boolean
}

// ---- kinds of builds -----------------------------------------------------------------------------------------------

/** How well a kind of build fits a machine. */
export interface Fit {
  /** Higher scores are tried first. 0 if it cannot work. */
  score: number
  /** Why it has this score, in sentences. */
  reasons: string[]
  /** Problems that prevent it from working or slow it down, and how to fix them. */
  missing: { what: string; fix?: string }[]
  /** Ids of the GPUs that it would use. */
  gpus: string[]
}

/** Matches the archives of a kind for one platform in the real list of a release's files. */
export interface ArchivePattern {
  platform: NodeJS.Platform
  arch: string
  /** Its groups may capture the version of the toolkit, of which higher ones are preferred. */
  archive: RegExp
  /** The archive of libraries for the same folder, by the match of `archive`. */
  companion?: (match: RegExpExecArray) => RegExp
  /** Minimum glibc version that its programs need. They do not run with other C libraries. Linux only. */
  glibc?: string
}

/** A kind of llama.cpp build, as plain data and pure functions. */
export interface RuntimeDescriptor {
  /** Such as `cuda-13`. */
  name: string
  kind: BuildKind
  title: string
  fit(hardware: Hardware): Fit
  /** In order of preference. Empty if only other sources provide it. */
  archives: readonly ArchivePattern[]
  /** Whether the driver supports the archive's toolkit. The highest supported version is used, or the lowest. */
  accepts?(match: RegExpExecArray, hardware: Hardware): boolean
  /** Environment variables for its processes, such as which of several GPUs to use. */
  environment?(hardware: Hardware): Record<string, string>
  /** Whether this kind can use a listed device. */
  usesDevice(device: BuildDevice, gpus: readonly Gpu[]): boolean
}

export const RankedCandidateSchema = Type.Object({
  runtime: Text('Name of the kind of build, such as cuda-13'),
  kind: BuildKindSchema,
  title: Text('Human-readable name'),
  score: Type.Number({ description: 'The highest is tried first; 0 cannot work here' }),
  usable: Flag('Whether it can work here, as far as is known'),
  reasons: Texts('Why it has this score'),
  missing: Type.Array(
    Type.Object({
      what: Text('In a sentence'),
      fix: Type.Optional(Text('The command or step that fixes it'))
    }),
    { description: 'What prevents it from working, or from working better' }
  ),
  gpus: Texts('Ids of the GPUs of `hardware` that it would use'),
  assets: Texts(
    'Files of the release for this platform and driver: the archive and its companions. ' +
      '`missing` says if this system is too old to run them'
  )
})
export type RankedCandidate = Static<typeof RankedCandidateSchema>

// ---- where builds come from ----------------------------------------------------------------------------------------

/** The build that a source is to provide. */
export interface BuildRequest extends Waiting {
  runtime: RuntimeDescriptor
  hardware: Hardware
  explain: (reason: string) => void
}

/** A place where llama.cpp builds come from. */
export interface BuildSource {
  readonly name: string
  /** One line on what it looks for and where. */
  readonly description: string
  /** Whether it needs no network or long work, and has one build for any kind. It is checked at each start. */
  readonly instant?: boolean
  /** Whether an earlier build still matches its settings. Others are used only if nothing better is available. */
  wants?(build: Build): boolean
  /** Finds or makes an unverified build. Undefined, after `explain`, if it has none. @throws Error worth reporting */
  provide(request: BuildRequest): Promise<BuildCandidate | undefined>
}

export const AttemptSchema = Group('The result of one source for one kind of build', {
  runtime: Type.Optional(Text('Kind of build; absent if the source has one build for any kind')),
  source: Text('Name of the source: system, release, source'),
  description: Text('What the source looks for and where'),
  outcome: Type.Enum(['chosen', 'unavailable', 'failed', 'not tried'], {
    description: 'unavailable: it has none for this machine; failed: it has one, which does not work'
  }),
  reasons: Texts('Reasons, one line each')
})
export type Attempt = Static<typeof AttemptSchema>

export const InstalledBuildSchema = Type.Object({
  build: BuildSchema,
  provenAt: Text('ISO 8601 UTC'),
  size: Integer('Bytes of its folder; 0 if it is outside the data directory'),
  state: Type.Enum(['in use', 'selected', 'previous', 'installed', 'failed'], {
    description:
      'in use: new engines run on it; selected: chosen by "corral runtime use"; previous: fallback of an upgrade'
  }),
  failure: Type.Optional(Text('Why its last verification failed'))
})
export type InstalledBuild = Static<typeof InstalledBuildSchema>

export const RuntimesReportSchema = Type.Object({
  state: Type.Enum(['idle', 'searching', 'ready', 'failed']),
  progress: Type.Optional(
    Type.Object({
      phase: Type.String(),
      subject: Type.String(),
      fraction: Type.Optional(Type.Number()),
      completed: Type.Optional(Type.Integer()),
      total: Type.Optional(Type.Integer())
    })
  ),
  hardware: Type.Optional(HardwareSchema),
  ranking: Type.Array(RankedCandidateSchema, { description: 'Kinds of builds, best first' }),
  release: Group('The release that the ranking uses', {
    tag: Text('Release whose file names the ranking uses'),
    list: Type.Enum(['live', 'snapshot'], { description: 'snapshot: the list bundled with corral' })
  }),
  chosen: Type.Optional(BuildSchema),
  attempts: Type.Array(AttemptSchema, { description: 'What the last search tried, in order' }),
  installed: Type.Array(InstalledBuildSchema, { description: 'Builds that were verified here, whatever their source' })
})
export type RuntimesReport = Omit<Static<typeof RuntimesReportSchema>, 'progress'> & { progress?: Progress }

/** llama.cpp's tools for making GGUF files. */
export interface ConversionTools {
  /** Folder with `convert_hf_to_gguf.py` and its modules. */
  directory: string
  /** Version of llama.cpp that it comes from, such as `v0.5.0` or `b10485`. */
  version: string
  /** Absolute path of llama-quantize; undefined if the engine's build has none. */
  quantize: string | undefined
  /** A sentence if its version differs from the engine's. */
  mismatch?: string
}

/** What to install: a kind of build from a release, or a local archive. */
export type InstallRequest =
  | {
      /** Name of a kind; the best ranked one if absent. */
      runtime?: string
      /** Release such as `b11347` or `v0.6.0`; the newest if absent. */
      version?: string
    }
  | {
      /** Absolute paths of a release archive and its companions. */
      archive: string
      companions?: string[]
      /** Expected SHA-256 in hex; if absent, the actual one is logged. */
      sha256?: string
      /** Name of a kind, if the archive's name does not say it. */
      runtime?: string
    }

export interface EngineRunSettings {
  /** Flags after corral's own. */
  extraArguments: readonly string[]
  /** Milliseconds without a sign of progress after which a load is aborted. */
  loadTimeout: number
  /** A busy engine without a sign of life is stopped after this time in milliseconds. 0 means never. */
  hangTimeout: number
  /** Where running engines are recorded. */
  runDirectory: string
}

export interface Runtimes {
  /** Adds a source of builds, tried after the existing ones. @returns removes it. @throws Error when its name is taken */
  addSource(source: BuildSource): () => void
  /** Adds a kind of build, ranked with the built-in ones. @returns and @throws as `addSource` */
  addRuntime(runtime: RuntimeDescriptor): () => void
  /**
   * The verified build for new engines, found or made on the first call; callers share one search. `choice` selects
   * another one: the id of an installed build, or a kind (`vulkan`, `cuda-13`), which is fetched if missing. A caller's
   * `signal` ends only its own waiting, not the search.
   * @throws CorralError `runtime_missing` with what was tried and what would help
   */
  build(waiting?: Waiting, choice?: string): Promise<Build>
  /** Environment variables that a build's kind sets for its processes on this machine. */
  environment(build: Build): Readonly<Record<string, string>>
  /** Starts an engine on the build for `choice`, or once more on the next best build if that does not work. */
  startOn<Started extends { exited: Promise<unknown> }>(
    engine: { name: string; choice?: string | undefined },
    start: (build: Build) => Promise<Started>,
    waiting: Waiting
  ): Promise<Started>
  readonly engineSettings: EngineRunSettings
  /** The engine's own converter if possible, otherwise the pinned one. @throws CorralError `runtime_missing` */
  conversionTools(waiting: Waiting): Promise<ConversionTools>
  /** The folder of the converter of the build for new engines; undefined if either is not installed. */
  presentConverter(): string | undefined
  /** Fetches, verifies and keeps a build without using it. @throws CorralError `runtime_missing` */
  install(request: InstallRequest, waiting: Waiting): Promise<Build>
  /** Verifies an installed build (an id or a kind) and uses it from now on. `auto` returns to the best ranked one. */
  use(choice: string, waiting: Waiting): Promise<Build>
  /** Installs and uses the newest release of the kind in use. If its verification fails, the current build stays. */
  upgrade(waiting: Waiting): Promise<{ build: Build; previous: Build; changed: boolean }>
  /** Removes an installed build. @throws CorralError if an engine uses it or it is selected */
  remove(id: string): Promise<void>
  /** The build for new engines, if it has been found already. */
  current(): Build | undefined
  state(): RuntimesReport['state']
  /** The build that is being found, fetched or compiled. */
  working(): Progress | undefined
  rank(waiting?: Waiting): Promise<void>
  /** The state of all builds, with a fresh ranking. */
  report(): RuntimesReport
}
