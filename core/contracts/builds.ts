import { type Static, Type } from 'typebox'
import { type Gpu, type Hardware, HardwareSchema } from './hardware.ts'
import type { Progress, Waiting } from './progress.ts'

/*
 * llama.cpp builds: what kinds there are (descriptors), where they come from (sources), which one is used and why.
 */

export const BuildKindSchema = Type.Enum(['cpu', 'cuda', 'rocm', 'metal', 'vulkan', 'sycl', 'unknown'], {
  description: 'What it computes with'
})
export type BuildKind = Static<typeof BuildKindSchema>

/** A device as llama-server's `--list-devices` names it. Memory in bytes; absent where it is not told. */
export const BuildDeviceSchema = Type.Object({
  id: Type.String({ description: 'Such as CUDA0' }),
  description: Type.String({ description: 'For people' }),
  totalMemory: Type.Optional(Type.Integer({ description: 'Bytes' })),
  freeMemory: Type.Optional(Type.Integer({ description: 'Bytes that were free when it was proven' }))
})
export type BuildDevice = Static<typeof BuildDeviceSchema>

/** A proven llama.cpp build: its llama-server has started, listed its devices and, where corral brought it, answered. */
export const BuildSchema = Type.Object(
  {
    id: Type.String({ description: 'Unique among builds, such as release-b11347-cuda-13' }),
    kind: BuildKindSchema,
    runtime: Type.Optional(Type.String({ description: 'Name of the descriptor that it serves, such as cuda-13' })),
    source: Type.String({ description: 'What brought it: system, release, archive, source' }),
    version: Type.String({ description: 'As llama-server --version says' }),
    commit: Type.Optional(Type.String({ description: "Of llama.cpp's source" })),
    directory: Type.String({ description: 'Where it lies' }),
    executables: Type.Object(
      {
        server: Type.String({ description: 'llama-server' }),
        quantize: Type.Optional(Type.String({ description: 'llama-quantize' })),
        ggufSplit: Type.Optional(Type.String({ description: 'llama-gguf-split' })),
        fitParams: Type.Optional(Type.String({ description: 'llama-fit-params' })),
        rpcServer: Type.Optional(Type.String({ description: 'ggml-rpc-server' }))
      },
      { description: 'Absolute paths of its programs' }
    ),
    digest: Type.String({ description: 'SHA-256 of llama-server itself' }),
    origin: Type.String({ description: 'A path, an address or a package' }),
    devices: Type.Array(BuildDeviceSchema, { description: 'What it computes on beside the processor' }),
    warnings: Type.Optional(
      Type.Array(Type.String(), {
        description: 'What the proof found wanting, such as a GPU of this machine that the build does not use'
      })
    ),
    converter: Type.Optional(
      Type.Object(
        {
          directory: Type.String({ description: 'Where convert_hf_to_gguf.py lies' }),
          version: Type.String({ description: 'Of the llama.cpp that it comes from' })
        },
        { description: 'Of SafeTensors models, where one came with it' }
      )
    )
  },
  { description: 'A llama.cpp build that was proven' }
)
export type Build = Static<typeof BuildSchema>

/** A build before it is proven. */
export interface BuildCandidate extends Omit<Build, 'version' | 'commit' | 'digest' | 'devices' | 'warnings'> {
  /** Whether the user asked for this very build: when it does not work, no other one takes its place. */
  required?: boolean
}

// ---- kinds of builds -----------------------------------------------------------------------------------------------

/** How well a kind of build fits a machine. */
export interface Fit {
  /** 0 where it cannot work; the highest one is tried first. */
  score: number
  /** Why it is so good, or no better; sentences for people. */
  reasons: string[]
  /** What keeps it from working or from working better, and the command or step that mends it. */
  missing: { what: string; fix?: string }[]
  /** Ids of the GPUs that it would use. */
  gpus: string[]
}

/** Names of archives that hold such a build for one platform. Never built from a template: matched against real lists. */
export interface ArchivePattern {
  platform: NodeJS.Platform
  arch: string
  /** Groups may hold the version of the toolkit, the higher the better. */
  archive: RegExp
  /** The archive with libraries that go into the same folder, given the match of `archive`. */
  companion?: (match: RegExpExecArray) => RegExp
  /** Lowest glibc that its programs start with; a system with another C library cannot run them. Linux only. */
  glibc?: string
}

/** A kind of llama.cpp build, as plain data and pure functions. */
export interface RuntimeDescriptor {
  /** Such as `cuda-13`. */
  name: string
  kind: BuildKind
  /** For people, such as `CUDA 13 (NVIDIA)`. */
  title: string
  fit(hardware: Hardware): Fit
  /** The better ones first where a platform has several; empty where only sources of its own bring it. */
  archives: readonly ArchivePattern[]
  /**
   * Whether this machine's driver serves the archive's version of the toolkit, by the match of its name; all do where
   * absent. Of those it serves the highest is taken, else the lowest there is: minor versions are mostly compatible.
   */
  accepts?(match: RegExpExecArray, hardware: Hardware): boolean
  /** Variables for its processes on this machine, such as which of several GPUs to use. */
  environment?(hardware: Hardware): Record<string, string>
  /** Whether a device of `--list-devices` is one that this kind is made for. */
  usesDevice(device: BuildDevice, gpus: readonly Gpu[]): boolean
}

export const RankedCandidateSchema = Type.Object({
  runtime: Type.String({ description: 'Name of the kind of build, such as cuda-13' }),
  kind: BuildKindSchema,
  title: Type.String({ description: 'For people' }),
  score: Type.Number({ description: 'The highest one is tried first; 0 cannot work here' }),
  usable: Type.Boolean({ description: 'Whether it can work here, by all that is known' }),
  reasons: Type.Array(Type.String(), { description: 'Why it stands where it stands' }),
  missing: Type.Array(
    Type.Object({
      what: Type.String({ description: 'In a sentence' }),
      fix: Type.Optional(Type.String({ description: 'The command or step that mends it' }))
    }),
    { description: 'What keeps it from working, or from working better' }
  ),
  gpus: Type.Array(Type.String(), { description: 'Ids of the GPUs of `hardware` that it would use' }),
  assets: Type.Array(Type.String(), {
    description:
      'Files of the release for this platform and driver: the archive and its companions; none where it has none. ' +
      '`missing` tells where this system is too old to run them'
  })
})
export type RankedCandidate = Static<typeof RankedCandidateSchema>

// ---- where builds come from ----------------------------------------------------------------------------------------

/** What a source is asked for. */
export interface BuildRequest extends Waiting {
  runtime: RuntimeDescriptor
  hardware: Hardware
  explain: (reason: string) => void
}

/** A place where llama.cpp builds come from. */
export interface BuildSource {
  readonly name: string
  /** One line for people on what it looks for and where. */
  readonly description: string
  /** Whether it answers without network or long work, whatever kind is asked for: then it is asked once at each start. */
  readonly instant?: boolean
  /**
   * Whether a build that it brought earlier is still what it would bring, which its settings may have changed. All are
   * by default; another one serves only when nothing better can be had.
   */
  wants?(build: Build): boolean
  /**
   * Looks for a build of this kind, or makes one, and returns it unproven; undefined with `explain` called when it has
   * none to offer. Throws for a failure worth telling (the next one is tried all the same).
   */
  provide(request: BuildRequest): Promise<BuildCandidate | undefined>
}

export const AttemptSchema = Type.Object(
  {
    runtime: Type.Optional(
      Type.String({ description: 'Kind of build that was asked for; absent where any was taken' })
    ),
    source: Type.String({ description: 'Where builds come from: system, release, source' }),
    description: Type.String({ description: 'What it looks for and where' }),
    outcome: Type.Enum(['chosen', 'unavailable', 'failed', 'not tried'], {
      description: 'unavailable: it has none for this machine; failed: it had one, which does not work'
    }),
    reasons: Type.Array(Type.String(), { description: 'Why, one line each' })
  },
  { description: 'What became of one source for one kind of build' }
)
export type Attempt = Static<typeof AttemptSchema>

export const InstalledBuildSchema = Type.Object({
  build: BuildSchema,
  provenAt: Type.String({ description: 'ISO 8601 UTC' }),
  size: Type.Integer({ description: 'Bytes of its folder; 0 where it is not in the data directory' }),
  state: Type.Enum(['in use', 'selected', 'previous', 'installed', 'failed'], {
    description:
      'in use: new engines run on it; selected: chosen by "corral runtime use"; previous: what an upgrade returns to'
  }),
  failure: Type.Optional(Type.String({ description: 'Why its proof failed last' }))
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
  ranking: Type.Array(RankedCandidateSchema, { description: 'What is tried, best first' }),
  release: Type.Object(
    {
      tag: Type.String({ description: 'Release whose list of files the ranking goes by' }),
      list: Type.Enum(['live', 'snapshot'], { description: 'snapshot: the list that came with corral' })
    },
    { description: 'What the ranking goes by' }
  ),
  chosen: Type.Optional(BuildSchema),
  attempts: Type.Array(AttemptSchema, { description: 'What the last search tried, in its order' }),
  installed: Type.Array(InstalledBuildSchema, { description: 'Builds that were proven here, whoever brought them' })
})
export type RuntimesReport = Omit<Static<typeof RuntimesReportSchema>, 'progress'> & { progress?: Progress }

/** llama.cpp's tools for making GGUF files. */
export interface ConversionTools {
  /** Folder with `convert_hf_to_gguf.py` and what belongs to it. */
  directory: string
  /** Version of llama.cpp that it comes from, such as `v0.5.0` or `b10485`. */
  version: string
  /** Absolute path of llama-quantize; undefined where the engine's build has none. */
  quantize: string | undefined
  /** A sentence, when it is not of the same version as the engine. */
  mismatch?: string
}

/** What to install: a kind of build and a release, or an archive on this disk. */
export type InstallRequest =
  | {
      /** Name of a descriptor; the best one of the ranking where absent. */
      runtime?: string
      /** Release such as `b11347`; the newest where absent. */
      version?: string
    }
  | {
      /** Absolute path of a release archive, and of its companions. */
      archive: string
      companions?: string[]
      /** 64 hex digits that the archive must have; what it has is told where absent. */
      sha256?: string
      /** Name of a descriptor, where the archive's own name does not tell. */
      runtime?: string
    }

/** Bytes by memory pool: `host`, or the id of a build's device such as `CUDA0`. */
export type MemoryUse = Record<string, number>

/** How the `runtimes` section of `config.yaml` wants engines to be run. */
export interface EngineRunSettings {
  /** Flags put after corral's own. */
  extraArguments: readonly string[]
  /** Milliseconds without a sign of progress after which a load is given up. */
  loadTimeout: number
  /** Milliseconds without a sign of life after which an engine that serves is ended; 0 is never. */
  hangTimeout: number
  /** Where running engines are written down. */
  runDirectory: string
}

export interface Runtimes {
  /** Adds a place that builds come from, tried after those already there. */
  addSource(source: BuildSource): void
  /** Adds a kind of build; it is ranked with the built-in ones. */
  addRuntime(runtime: RuntimeDescriptor): void
  /**
   * The proven build that new engines run on, found or made on first call; callers share one search. `choice` names
   * another one: an installed build's id, or a kind of build (`vulkan`, `cuda-13`), which is got where it is missing. A
   * caller's `signal` ends its own waiting only, not the search.
   * @throws CorralError `runtime_missing` with what was tried and what would help
   */
  build(waiting?: Waiting, choice?: string): Promise<Build>
  /** Variables that a build's kind wants for its processes on this machine. */
  environment(build: Build): Readonly<Record<string, string>>
  /**
   * Starts an engine on the build that `build` gives for `choice`. When the build turns out not to work here, it is
   * started once more on the next best one.
   * @param name the model's, for the log
   */
  startOn<Started extends { exited: Promise<unknown> }>(
    engine: { name: string; choice?: string | undefined },
    start: (build: Build) => Promise<Started>,
    waiting: Waiting
  ): Promise<Started>
  readonly engineSettings: EngineRunSettings
  /**
   * The converter of the engine's own version where it can be had, else the pinned one, fetched on first call.
   * @throws CorralError `runtime_missing` with what was tried and what would help
   */
  conversionTools(waiting: Waiting): Promise<ConversionTools>
  /** Gets a build, proves it and keeps it beside the others; it is not used by that. @throws CorralError `runtime_missing` */
  install(request: InstallRequest, waiting: Waiting): Promise<Build>
  /**
   * New engines run on this one from now on (an id, or a kind of build that is installed), also after a restart;
   * `auto` goes back to the best one of the ranking. It is proven before.
   */
  use(choice: string, waiting: Waiting): Promise<Build>
  /** Gets the newest release of the kind in use and uses it; when it fails its proof, the former one stays. */
  upgrade(waiting: Waiting): Promise<{ build: Build; previous: Build; changed: boolean }>
  /** Removes an installed build. @throws CorralError when it is in use by an engine or selected */
  remove(id: string): Promise<void>
  /** The build that new engines run on, once it has been found. Answered from memory. */
  current(): Build | undefined
  /** Waits for hardware and ranking, not for a build. */
  rank(waiting?: Waiting): Promise<void>
  /** All that is known, for people and programs: it ranks anew and reads the records of the builds. */
  report(): RuntimesReport
}
