import { z } from 'zod'

/** What models are made to answer with: bounded, so that any model comes to its end. */
export const CityReport = z.object({ city: z.enum(['Paris', 'Rome']), warm: z.boolean(), rank: z.enum(['1', '2']) })
