import { type Static, Type } from 'typebox'
import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import { Bytes, Format } from './native-records.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

const loose = { additionalProperties: true }

/** The models in the cache of another tool. */
export const FoundModelsSchema = Type.Object(
  {
    from: Type.String({ description: 'The tool' }),
    folder: Type.String({ description: 'The searched folder: an absolute path, or several separated by commas' }),
    models: Type.Array(
      Type.Object(
        {
          found: Type.String({ description: 'Its name in that tool, which an import uses' }),
          name: Type.String({ description: 'Its name in corral' }),
          format: Format,
          size: Bytes('Bytes of all its files'),
          path: Type.String({ description: 'Absolute path of its first file, or of its folder' }),
          problem: Type.Optional(Type.String({ description: 'Why it cannot be imported' })),
          notes: Type.Optional(Type.Array(Type.String(), { description: 'What an import would not keep, and why' })),
          present: Type.Boolean({ description: 'Whether it is already stored' }),
          storedAs: Type.Optional(Type.String({ description: 'The name it is stored under' }))
        },
        loose
      )
    ),
    unreadable: Type.Optional(Type.Array(Type.String(), { description: 'What could not be searched, and why' }))
  },
  { ...loose, title: 'FoundModels' }
)
export type FoundModels = Static<typeof FoundModelsSchema>
export type FoundModel = FoundModels['models'][number]

/** Imports models that other tools have downloaded. */
export interface Adoption {
  /**
   * Lists the models in a tool's cache; empty if there is none.
   * @param caller over the network, only models below `storage.import_roots` are listed
   * @throws CorralError `invalid_request` for an unknown tool, or if the cache may not be read; `path_not_allowed`
   */
  find(from: string, caller?: Caller): Promise<FoundModels>
  /**
   * Stores a listed model, by link if possible.
   * @param name undefined to use the name in the list
   * @returns `linked`: its weights were not copied; `notes`: what was not kept, and why
   * @throws CorralError `model_not_found` if the cache has no such model, `invalid_request` with its problem, and the
   * errors of Storage.adopt
   */
  adopt(
    from: string,
    found: string,
    name: ModelName | undefined,
    waiting: Waiting,
    caller?: Caller
  ): Promise<{ variant: StoredVariant; linked: boolean; notes: string[] }>
}
