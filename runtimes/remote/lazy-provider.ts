import type { EngineProvider } from '../../core/contracts/engines.ts'

/** A provider whose code is loaded when the first of its models is. Most servers have none. It has no load options. */
export function lazyProvider(
  name: string,
  serves: EngineProvider['serves'],
  create: () => Promise<EngineProvider>
): EngineProvider {
  let created: EngineProvider | undefined
  let creating: Promise<EngineProvider> | undefined
  const load = async () => {
    creating ??= create()
    created = await creating
    return created
  }
  return {
    name,
    serves,
    loadOptions: () => ({}),
    estimate: async (spec, waiting) => await (await load()).estimate!(spec, waiting),
    start: async (spec, waiting) => await (await load()).start(spec, waiting),
    logs: model => created?.logs?.(model) ?? [],
    close: async () => await created?.close?.()
  }
}
