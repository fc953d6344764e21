//! The rules of the budget, case by case.

use super::*;

const GB: u64 = 1_000_000_000;

fn machine(available: u64, total: u64) -> MachineFacts {
    MachineFacts {
        memory_available: Some(available),
        memory_total: Some(total),
        cgroup_limit: None,
        cgroup_used: None,
        cores_physical: Some(8),
        cores_allowed: 8,
        page_size: Some(4096),
        swap_used: Some(0),
        cpu_name: None,
    }
}

/// The sizes of GLM-5.2 in groups of 64, rounded.
fn glm() -> ModelSizes {
    ModelSizes {
        resident_bytes: 12 * GB,
        kv_bytes_per_token: 200_000,
        scratch_bytes: 700_000_000,
        expert_bytes_total: 413 * GB,
        slot_bytes: 21_233_664,
        slot_bytes_codes: 21_233_664,
        far_scale_bytes: 0,
        unaligned_scale_bytes: 0,
        reads_per_miss: 1,
        reads_per_miss_codes: 1,
        experts_total: 19_456,
        active_experts_min: 8,
        context_max: 202_752,
        container_bytes: 425 * GB,
    }
}

/// A published container of GLM-5.2: codes of an expert together, its scales elsewhere. `per_expert` bytes of scales; the
/// codes begin anywhere in a block, and so do the scales.
fn published(per_expert: u64) -> ModelSizes {
    let codes = 3 * 6_291_456 + 4096;
    let scales = per_expert.next_multiple_of(4096) + 4096;
    ModelSizes {
        slot_bytes: codes + scales,
        slot_bytes_codes: codes,
        far_scale_bytes: 19_456 * per_expert,
        reads_per_miss: 2,
        ..glm()
    }
}

/// One scale per row of gate [2048, 6144], up and down [6144, 2048].
fn per_row() -> ModelSizes {
    published((2048 + 2048 + 6144) * 4)
}

/// One scale per 64 columns.
fn groups_of_64() -> ModelSizes {
    published(3 * 196_608 * 4)
}

/// A model that fits everywhere.
fn tiny() -> ModelSizes {
    ModelSizes {
        resident_bytes: 4_000_000,
        kv_bytes_per_token: 4_000,
        scratch_bytes: 1_000_000,
        expert_bytes_total: 5_000_000,
        slot_bytes: 28_672,
        slot_bytes_codes: 28_672,
        far_scale_bytes: 0,
        unaligned_scale_bytes: 0,
        reads_per_miss: 1,
        reads_per_miss_codes: 1,
        experts_total: 160,
        active_experts_min: 4,
        context_max: 2048,
        container_bytes: 9_000_000,
    }
}

fn asked(ram: RamLimit, context: ContextRequest, io: IoRequest) -> BudgetRequest {
    BudgetRequest { ram, context, io }
}

#[test]
fn a_size_is_read_or_refused() {
    let good = [
        ("auto", RamLimit::Auto),
        (" AUTO ", RamLimit::Auto),
        ("20GB", RamLimit::Bytes(20 * GB)),
        ("20gib", RamLimit::Bytes(20 << 30)),
        ("20G", RamLimit::Bytes(20 * GB)),
        ("20g", RamLimit::Bytes(20 * GB)),
        ("1.5 TB", RamLimit::Bytes(1_500 * GB)),
        ("800MB", RamLimit::Bytes(800_000_000)),
        ("75%", RamLimit::Percent(75.0)),
        ("100%", RamLimit::Percent(100.0)),
    ];
    for (text, wanted) in good {
        assert_eq!(RamLimit::parse(text).unwrap(), wanted, "{text}");
    }
    for text in ["", "20", "GB", "-5GB", "0GB", "0%", "101%", "nan%", "infGB", "1e9GB", "20 parsecs", "2.0.0GB", "٣GB"]
    {
        let error = RamLimit::parse(text).unwrap_err();
        assert_eq!(error.code(), "invalid_value", "{text}");
    }
}

#[test]
fn the_automatic_budget_leaves_a_fifth_or_two_gibibytes() {
    let cases = [
        (machine(20 * GB, 32 * GB), 16 * GB),
        // Four fifths of 5 GB would leave 1 GB of a large machine: two gibibytes stay free instead.
        (machine(5 * GB, 64 * GB), 5 * GB - RESERVE),
        (machine(GB, GB), GB / 5 * 4),
        // The control group leaves 8 GB, a fifth of its 10 GB stays free.
        (machine(100 << 20, 64 * GB), 0),
        (MachineFacts { cgroup_limit: Some(10 * GB), cgroup_used: Some(2 * GB), ..machine(20 * GB, 32 * GB) }, 6 * GB),
    ];
    for (facts, wanted) in cases {
        assert_eq!(auto_budget(&facts, &mut Vec::new()), wanted, "{facts:?}");
    }
}

#[test]
fn ms_01_unknown_memory_is_said_and_the_option_overrides_it() {
    let blind = MachineFacts { memory_available: None, memory_total: None, ..machine(0, 0) };
    let plan_auto = plan(&blind, &tiny(), &BudgetRequest::default()).unwrap();
    assert_eq!(plan_auto.ram_budget, BLIND_BUDGET);
    assert!(plan_auto.notes[0].contains("could not read free memory, using 4.3 GB"), "{:?}", plan_auto.notes);
    let half = MachineFacts { memory_total: Some(128 * GB), ..blind.clone() };
    assert_eq!(plan(&half, &tiny(), &BudgetRequest::default()).unwrap().ram_budget, 64 * GB);

    let own = asked(RamLimit::Bytes(100 * GB), ContextRequest::Auto, IoRequest::Auto);
    let plan_own = plan(&blind, &tiny(), &own).unwrap();
    assert_eq!((plan_own.ram_budget, plan_own.notes.len()), (100 * GB, 0));
    let share = asked(RamLimit::Percent(50.0), ContextRequest::Auto, IoRequest::Auto);
    assert_eq!(plan(&blind, &tiny(), &share).unwrap_err().code(), "invalid_value");
    assert_eq!(plan(&machine(20 * GB, 32 * GB), &tiny(), &share).unwrap().ram_budget, 16 * GB);
}

#[test]
fn ms_03_the_plan_holds_its_own_promise() {
    for available in [16, 17, 20, 24, 64, 128, 1000].map(|size| size * GB) {
        for context in [ContextRequest::Auto, ContextRequest::Tokens(1), ContextRequest::Tokens(5000)] {
            for io in [IoRequest::Auto, IoRequest::Kind(SourceKind::Direct), IoRequest::Kind(SourceKind::Mmap)] {
                for sizes in [glm(), tiny(), per_row(), groups_of_64(), odd_scales()] {
                    let context = match context {
                        ContextRequest::Tokens(tokens) => ContextRequest::Tokens(tokens.min(sizes.context_max)),
                        auto => auto,
                    };
                    let facts = machine(available, available * 2);
                    let Ok(plan) = plan(&facts, &sizes, &asked(RamLimit::Auto, context, io)) else { continue };
                    assert!(plan.projected_peak <= plan.ram_budget, "{plan:?}");
                    assert!(plan.ram_budget <= available, "{plan:?}");
                    assert_eq!(plan.terms().iter().map(|(_, bytes)| bytes).sum::<u64>(), plan.projected_peak);
                    assert!(plan.slots <= sizes.experts_total && plan.slots >= sizes.active_experts_min);
                    assert!(plan.context <= sizes.context_max && plan.context >= 1);
                }
            }
        }
    }
    // A budget far above the model: no more slots than experts.
    let direct = asked(RamLimit::Auto, ContextRequest::Auto, IoRequest::Kind(SourceKind::Direct));
    let plan = plan(&machine(64 * GB, 64 * GB), &tiny(), &direct).unwrap();
    assert_eq!((plan.slots, plan.cache_bytes), (160, 160 * 28_672));
}

/// A model that fits, with scales that a mapping cannot lend.
fn odd_scales() -> ModelSizes {
    let scales = 400_000;
    ModelSizes { far_scale_bytes: scales, unaligned_scale_bytes: scales, slot_bytes_codes: 24_576, ..tiny() }
}

fn scales_of(sizes: &ModelSizes, room: u64) -> ScalePlacement {
    let placed = scales::place(sizes, room, SourceKind::Direct);
    assert_eq!(placed, scales::place(sizes, room, SourceKind::Buffered));
    placed
}

#[test]
fn row_scales_of_the_published_container_stay_in_memory_where_they_are_a_small_part_of_it() {
    let sizes = per_row();
    assert_eq!(sizes.far_scale_bytes, 796_917_760);
    // A quarter of 3.18 GB is less than they take.
    for (room, mode) in [
        (GB, ScaleMode::WithEachMiss),
        (3_180_000_000, ScaleMode::WithEachMiss),
        (3_190_000_000, ScaleMode::Resident),
        (5 * GB, ScaleMode::Resident),
        (10 * GB, ScaleMode::Resident),
        (46 * GB, ScaleMode::Resident),
        (300 * GB, ScaleMode::Resident),
    ] {
        let placed = scales_of(&sizes, room);
        assert_eq!(placed.mode, mode, "{room}: {}", placed.reason);
    }
    let placed = scales_of(&sizes, 10 * GB);
    assert_eq!((placed.resident_bytes, placed.reads_per_miss, placed.slot_bytes), (796_917_760, 1, 18_878_464));
    assert!(placed.reason.contains("796.9 MB") && placed.reason.contains("1 read instead of 2 reads"), "{placed:?}");
    let placed = scales_of(&sizes, GB);
    assert_eq!((placed.resident_bytes, placed.reads_per_miss, placed.slot_bytes), (0, 2, 18_923_520));
}

#[test]
fn group_scales_of_the_published_container_come_with_each_miss_on_every_pc() {
    let sizes = groups_of_64();
    assert_eq!(sizes.far_scale_bytes, 45_902_462_976);
    for total in [16, 24, 32, 48, 64] {
        let request = asked(RamLimit::Bytes(total * GB), ContextRequest::Tokens(4096), IoRequest::Auto);
        let plan = plan(&machine(total * GB, total * GB), &sizes, &request).unwrap();
        assert_eq!(plan.scales.mode, ScaleMode::WithEachMiss);
        assert!(plan.scales.reason.contains("45.9 GB"), "{}", plan.scales.reason);
        assert_eq!((plan.scales.resident_bytes, plan.scales.slot_bytes), (0, sizes.slot_bytes));
    }
    // They would fit here, and the experts that they push out are worth more than the reads they save.
    let placed = scales_of(&sizes, 200 * GB);
    assert!(placed.mode == ScaleMode::WithEachMiss && placed.reason.contains("cost more"), "{}", placed.reason);
    // Where all experts fit beside them, they are read in one sweep.
    assert_eq!(scales_of(&sizes, 450 * GB).mode, ScaleMode::Resident);
}

#[test]
fn held_scales_are_a_term_of_the_peak_and_shrink_the_slots() {
    let sizes = per_row();
    let request = asked(RamLimit::Bytes(20 * GB), ContextRequest::Tokens(8192), IoRequest::Auto);
    let plan = plan(&machine(24 * GB, 32 * GB), &sizes, &request).unwrap();
    let rest = 20 * GB - 12 * GB - 8192 * 200_000 - 700_000_000 - sizes.far_scale_bytes;
    assert_eq!((plan.scales.mode, plan.slots), (ScaleMode::Resident, rest / sizes.slot_bytes_codes));
    assert_eq!(plan.cache_bytes, plan.slots * sizes.slot_bytes_codes);
    assert!(plan.terms().contains(&("expert scales", sizes.far_scale_bytes)));
    assert_eq!(plan.terms().iter().map(|(_, bytes)| bytes).sum::<u64>(), plan.projected_peak);
    // The fewest slots come first.
    let few = ModelSizes { active_experts_min: plan.slots + 1, ..sizes };
    let plan = super::plan(&machine(24 * GB, 32 * GB), &few, &request).unwrap();
    assert_eq!(plan.scales.mode, ScaleMode::WithEachMiss);
}

#[test]
fn mapped_scales_are_used_where_they_lie_or_copied_once() {
    let facts = machine(24 * GB, 32 * GB);
    let plan_of = |sizes: &ModelSizes, request| plan(&facts, sizes, &request).unwrap();
    let even = ModelSizes { unaligned_scale_bytes: 0, ..odd_scales() };
    let mapped = plan_of(&even, BudgetRequest::default());
    assert_eq!((mapped.io, mapped.scales.mode), (SourceKind::Mmap, ScaleMode::Mapped));
    assert_eq!((mapped.scales.resident_bytes, mapped.scales.reads_per_miss), (0, 0));
    let copied = plan_of(&odd_scales(), BudgetRequest::default());
    assert_eq!((copied.io, copied.scales.mode), (SourceKind::Mmap, ScaleMode::Resident));
    assert_eq!(copied.projected_peak, mapped.projected_peak + odd_scales().unaligned_scale_bytes);
    // Copies that would not fit are not made, although a mapping was asked for.
    let large = ModelSizes { unaligned_scale_bytes: groups_of_64().far_scale_bytes, ..groups_of_64() };
    let refused = plan_of(&large, asked(RamLimit::Auto, ContextRequest::Auto, IoRequest::Kind(SourceKind::Mmap)));
    assert_eq!((refused.io, refused.scales.mode), (SourceKind::Direct, ScaleMode::WithEachMiss));
    assert!(refused.io_reason.contains("45.9 GB") && refused.io_reason.contains("asked for"), "{}", refused.io_reason);
}

#[test]
fn scales_beside_their_codes_need_no_choice() {
    let placed = scales_of(&glm(), 10 * GB);
    assert_eq!((placed.mode, placed.resident_bytes, placed.reads_per_miss), (ScaleMode::Record, 0, 1));
    assert_eq!(placed.slot_bytes, glm().slot_bytes);
}

#[test]
fn ms_04_the_projection_grows_with_the_context_as_the_formula_says() {
    let facts = machine(100 * GB, 128 * GB);
    let mut last = 0;
    for tokens in [1024, 6144, 65_536] {
        let request = asked(RamLimit::Auto, ContextRequest::Tokens(tokens), IoRequest::Auto);
        let plan = plan(&facts, &glm(), &request).unwrap();
        assert_eq!(plan.kv_bytes, u64::from(tokens) * 200_000);
        assert!(plan.kv_bytes > last);
        assert_eq!(plan.cache_bytes, plan.slots * glm().slot_bytes);
        last = plan.kv_bytes;
    }
}

#[test]
fn ms_06_the_cache_gets_what_the_other_terms_leave() {
    let request = asked(RamLimit::Bytes(20 * GB), ContextRequest::Tokens(8192), IoRequest::Auto);
    let plan = plan(&machine(24 * GB, 32 * GB), &glm(), &request).unwrap();
    let rest = 20 * GB - 12 * GB - 8192 * 200_000 - 700_000_000;
    assert_eq!(plan.slots, rest / glm().slot_bytes);
    assert!(rest - plan.cache_bytes < glm().slot_bytes);
}

#[test]
fn the_automatic_context_is_a_tenth_of_the_budget_within_limits() {
    let context = |budget, sizes: &ModelSizes| auto_context(budget, sizes);
    assert_eq!(context(100 * GB, &glm()), 32_768);
    assert_eq!(context(10 * GB, &glm()), 8192);
    assert_eq!(context(0, &glm()), 8192);
    assert_eq!(context(100_000 * GB, &glm()), 131_072);
    assert_eq!(context(100 * GB, &tiny()), 2048);
    assert_eq!(context(0, &tiny()), 2048);
    assert_eq!(context(100 * GB, &ModelSizes { context_max: 5000, ..tiny() }), 5000);
    assert_eq!(context(100 * GB, &ModelSizes { kv_bytes_per_token: 0, ..glm() }), 131_072);
}

#[test]
fn reading_is_mapped_when_the_model_fits_and_direct_when_not() {
    let facts = machine(24 * GB, 32 * GB);
    let plan_tiny = plan(&facts, &tiny(), &BudgetRequest::default()).unwrap();
    assert_eq!(plan_tiny.io, SourceKind::Mmap);
    assert!(plan_tiny.io_reason.contains("fits the budget"), "{}", plan_tiny.io_reason);
    assert_eq!(plan_tiny.cache_bytes, tiny().expert_bytes_total);
    let plan_glm = plan(&facts, &glm(), &BudgetRequest::default()).unwrap();
    assert_eq!(plan_glm.io, SourceKind::Direct);
    assert!(plan_glm.io_reason.contains("does not fit"), "{}", plan_glm.io_reason);
    for kind in [SourceKind::Buffered, SourceKind::Direct, SourceKind::Mmap] {
        let request = asked(RamLimit::Auto, ContextRequest::Auto, IoRequest::Kind(kind));
        let plan = plan(&facts, &glm(), &request).unwrap();
        assert_eq!(plan.io, kind);
        assert!(plan.io_reason.starts_with("asked for"));
    }
}

#[test]
fn what_does_not_fit_is_refused_with_numbers_and_ways_out() {
    let request = asked(RamLimit::Bytes(14 * GB), ContextRequest::Tokens(16_384), IoRequest::Auto);
    let error = plan(&machine(24 * GB, 32 * GB), &glm(), &request).unwrap_err();
    assert_eq!(error.code(), "ram_budget_too_small");
    assert_eq!(error.to_string(), "this model needs 16.1 GB and --ram is 14.0 GB");
    let why = error.why().unwrap();
    for part in ["12.0 GB", "ctx 16384 3.3 GB", "700.0 MB", "8 expert slots 169.9 MB"] {
        assert!(why.contains(part), "{part} in {why}");
    }
    let fix = error.fix().unwrap();
    assert!(fix.contains("--ram 17GB") && fix.contains("--ctx 4096 (needs 13.7 GB)"), "{fix}");
    assert!(RamLimit::parse("17GB").is_ok());

    // Not enough memory at all: more --ram is not offered, and there are still two ways out.
    let error = plan(&machine(8 * GB, 8 * GB), &glm(), &BudgetRequest::default()).unwrap_err();
    let fix = error.fix().unwrap();
    assert!(!fix.contains("--ram") && fix.contains("8.0 GB is available") && fix.contains(", or "), "{fix}");
}

#[test]
fn more_than_is_free_is_lowered_with_a_note() {
    let request = asked(RamLimit::Bytes(100 * GB), ContextRequest::Auto, IoRequest::Auto);
    let plan = plan(&machine(24 * GB, 32 * GB), &glm(), &request).unwrap();
    assert_eq!(plan.ram_budget, 24 * GB);
    assert!(plan.notes[0].contains("--ram asks for 100.0 GB and 24.0 GB are free"), "{:?}", plan.notes);
}

#[test]
fn a_context_the_model_does_not_have_is_refused() {
    for tokens in [0, 2049, u32::MAX] {
        let request = asked(RamLimit::Auto, ContextRequest::Tokens(tokens), IoRequest::Auto);
        let error = plan(&machine(24 * GB, 32 * GB), &tiny(), &request).unwrap_err();
        assert_eq!(error.code(), "invalid_value");
        assert!(error.why().unwrap().contains("2048"));
    }
}

#[test]
fn hostile_sizes_do_not_overflow() {
    let huge = ModelSizes {
        resident_bytes: u64::MAX,
        kv_bytes_per_token: u64::MAX,
        scratch_bytes: u64::MAX,
        expert_bytes_total: u64::MAX,
        slot_bytes: u64::MAX,
        slot_bytes_codes: u64::MAX,
        far_scale_bytes: u64::MAX,
        unaligned_scale_bytes: u64::MAX,
        reads_per_miss: u64::MAX,
        reads_per_miss_codes: u64::MAX,
        experts_total: u64::MAX,
        active_experts_min: u64::MAX,
        context_max: u32::MAX,
        container_bytes: u64::MAX,
    };
    assert_eq!(plan(&machine(GB, GB), &huge, &BudgetRequest::default()).unwrap_err().code(), "ram_budget_too_small");
    let empty =
        plan(&machine(GB, GB), &ModelSizes { context_max: 1, ..ModelSizes::default() }, &BudgetRequest::default());
    assert_eq!(empty.unwrap().slots, 0);
}
